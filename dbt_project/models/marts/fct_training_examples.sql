with

attempts as (

    select * from {{ ref('fct_attempts') }}

),

hardware as (

    select * from {{ ref('dim_hardware_type') }}

),

-- A version that no cut ever saw teaches nothing: no night could have trained on it.
labelled as (

    select *
    from attempts
    where
        visible_from < coalesce(visible_to, cast('infinity' as date))
        and {{ is_positive('throughput') }}
        and {{ is_positive('num_devices') }}

),

examples as (

    select
        labelled.attempt_id,
        labelled.segment_number,
        labelled.version,
        labelled.is_newest,
        labelled.night,
        labelled.visible_from,
        labelled.visible_to,
        {{ submission_columns('labelled') }},
        labelled.num_devices,
        labelled.pool,
        {{ hardware_columns('hardware') }},
        labelled.outcome,
        labelled.submitted_at,
        labelled.started_at,
        labelled.ended_at,
        labelled.throughput,
        ln(labelled.throughput / labelled.num_devices) as log_throughput_per_device,
        labelled.source,
        labelled.slice
    from labelled
    inner join hardware on labelled.hardware_type = hardware.hardware_type

)

select * from examples
order by attempt_id, segment_number, version
