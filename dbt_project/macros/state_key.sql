{# The values joined by ASCII 31; null where one of them is. Written as `leap.features` writes it: numbers as the nearest whole
   number, halves up. #}
{% macro state_key(columns) %}
    {% set parts = [] %}
    {% for column in columns %}
        {% if column in ["global_batch_size", "num_devices"] %}
            {% do parts.append(
                "case when isfinite(" ~ column ~ ") then cast(cast(floor(" ~ column ~ " + 0.5) as bigint) as varchar) end"
            ) %}
        {% else %}
            {% do parts.append(column) %}
        {% endif %}
    {% endfor %}
    {{ return(parts | join(" || chr(31) || ")) }}
{% endmacro %}
