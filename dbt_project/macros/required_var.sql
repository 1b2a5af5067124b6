{# A variable without a default in the project: parsing goes without it, a run does not. #}
{% macro required_var(name, when_parsing) %}
    {% set value = var(name, none) %}
    {% if value is none and execute %}
        {{ exceptions.raise_compiler_error(
            "the variable `" ~ name ~ "` is missing; run `leap nightly`, or pass --vars with cut, state_levels, active_days, "
            ~ "hardware_seen_days and price_list"
        ) }}
    {% endif %}
    {{ return(when_parsing if value is none else value) }}
{% endmacro %}

{# The night's UTC date: only what was over and known before its 00:00 is visible. #}
{% macro cut() %}
    {{ return("cast('" ~ required_var("cut", "1970-01-01") ~ "' as date)") }}
{% endmacro %}
