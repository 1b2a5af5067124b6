with

attempts as (

    select * from {{ ref('int_attempts_versioned') }}

),

selected as (

    select
        attempt_id,
        segment_number,
        cast(version as integer) as version,
        is_newest,
        known_from,
        known_to,
        visible_from,
        visible_to,
        night,
        {{ submission_columns() }},
        num_devices,
        pool,
        cluster,
        hardware_type,
        outcome,
        submitted_at,
        started_at,
        ended_at,
        throughput,
        steady_seconds,
        label_rule,
        pinned,
        eligible_hardware,
        ranking_id,
        arm,
        source,
        slice
    from attempts

)

select * from selected
order by attempt_id, segment_number, version
