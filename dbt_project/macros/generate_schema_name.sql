{# The schema is what the project says, without the target's own in front: schema/table is also the asset key. #}
{% macro generate_schema_name(custom_schema_name, node) %}
    {{ return(custom_schema_name or target.schema) }}
{% endmacro %}
