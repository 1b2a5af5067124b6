with

attempts as (

    select * from {{ ref('int_attempts_throughput_converted') }}

),

numbered as (

    select
        *,
        row_number() over newer as version,
        lead(known_at) over newer as known_to
    from attempts
    window newer as (
        partition by attempt_id, segment_number
        order by known_at, received_at, content_hash
    )

),

-- The first cut that sees a version is the first 00:00 after its end and after it became known. A version is gone from the
-- first cut after its successor became known, seen or not: what is known of an attempt is its newest version.
dated as (

    select
        * exclude (known_to),
        known_at as known_from,
        known_to,
        known_to is null as is_newest,
        case when ended_at is not null then cast(greatest(ended_at, known_at) as date) + 1 end as visible_from,
        cast(known_to as date) + 1 as visible_to
    from numbered

)

select * from dated
