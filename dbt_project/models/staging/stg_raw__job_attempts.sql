{#- Names are known without the blanks around them, as a submission's are; one of blanks alone is none. -#}
{%- set names = ["job_id", "team", "model_type", "task", "framework", "framework_version", "precision", "optimizer"] -%}
{%- set blanks = "' ' || chr(9) || chr(10) || chr(13)" -%}

with

attempts as (

    select * from {{ source('raw', 'job_attempts') }}

),

typed as (

    select
        attempt_id,
        segment_number,
        attempt_number,
        submitted_at,
        started_at,
        ended_at,
        known_at,
        received_at,
        cast(coalesce(submitted_at, started_at) as date) as night,

        {% for name in names -%}
        nullif(trim({{ name }}, {{ blanks }}), '') as {{ name }},
        {% endfor %}
        global_batch_size,
        gradient_accumulation_steps,
        sequence_length,
        image_size,
        parameters_m,
        data_parallel,
        tensor_parallel,
        pipeline_parallel,

        cast(num_devices as double) as num_devices,
        cast(num_nodes as double) as num_nodes,
        coalesce(nullif(trim(pool, {{ blanks }}), ''), 'default') as pool,
        cluster,
        hardware_name,
        hardware_type,

        outcome,
        throughput as reported_throughput,
        throughput_unit,
        throughput_scope,
        steady_seconds,
        warmup_seconds,
        label_rule,
        throughput_as_logged,
        coalesce(pinned, false) as pinned,
        eligible_hardware,
        ranking_id,
        arm,

        source,
        slice,
        file,
        line,
        content_hash,
        load_id

    from attempts

)

select * from typed
