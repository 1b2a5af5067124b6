{# The columns of a submission, in the order of `leap.contracts`. #}
{% macro submission_columns(relation="") %}
    {% set columns = [
        "job_id", "team", "model_type", "task", "framework", "framework_version", "precision", "optimizer",
        "global_batch_size", "gradient_accumulation_steps", "sequence_length", "image_size", "parameters_m",
        "data_parallel", "tensor_parallel", "pipeline_parallel",
    ] %}
    {{ return(qualified(columns, relation)) }}
{% endmacro %}

{# What the catalogue says of a hardware type, in the order of `leap.contracts`. #}
{% macro hardware_columns(relation="") %}
    {% set columns = [
        "hardware_type", "vendor", "family", "form_factor", "memory_bytes", "memory_bandwidth_gbps", "peak_bf16_tflops",
        "peak_fp8_tflops", "peak_fp32_tflops", "interconnect_gbps", "tdp_watts", "release_year",
    ] %}
    {{ return(qualified(columns, relation)) }}
{% endmacro %}

{% macro qualified(columns, relation) %}
    {% set prefix = relation ~ "." if relation else "" %}
    {{ return(prefix ~ columns | join(", " ~ prefix)) }}
{% endmacro %}
