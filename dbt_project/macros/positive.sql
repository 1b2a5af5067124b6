{# Finite and above zero; false where unknown. In DuckDB NaN is greater than any number. #}
{% macro is_positive(expression) %}
    {{ return("coalesce(isfinite(" ~ expression ~ ") and " ~ expression ~ " > 0, false)") }}
{% endmacro %}

{% macro log_of_positive(expression) %}
    {{ return("case when " ~ is_positive(expression) ~ " then ln(" ~ expression ~ ") end") }}
{% endmacro %}
