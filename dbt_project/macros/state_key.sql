{# The values joined by ASCII 31; null where one of them is. `columns` are key parts, as `state_key_part` gives them. #}
{% macro state_key(columns) %}
    {% set parts = [] %}
    {% for column in columns %}
        {% do parts.append("cast(" ~ column ~ " as varchar)" if is_number_of_key(column) else column) %}
    {% endfor %}
    {{ return(parts | join(" || chr(31) || ")) }}
{% endmacro %}

{# A column as a part of keys, written as `leap.features` writes it: numbers as the nearest whole number, halves up. #}
{% macro state_key_part(column) %}
    {% if is_number_of_key(column) %}
        {{ return("case when isfinite(" ~ column ~ ") then cast(floor(" ~ column ~ " + 0.5) as bigint) end") }}
    {% endif %}
    {{ return(column) }}
{% endmacro %}

{% macro is_number_of_key(column) %}
    {{ return(column in ["global_batch_size", "num_devices"]) }}
{% endmacro %}

{# The columns that any level's key is made of, each once. #}
{% macro state_key_columns(levels) %}
    {{ return(levels.values() | sum(start=[]) | unique | list) }}
{% endmacro %}
