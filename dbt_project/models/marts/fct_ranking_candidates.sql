with

attempts as (

    select * from {{ ref('fct_attempts') }}

),

hardware as (

    select * from {{ ref('dim_hardware_type') }}

),

prices as (

    select * from {{ ref('int_prices_as_of') }}

),

visible as (

    select
        *,
        max(ended_at) over (partition by attempt_id) as attempt_ended_at
    from attempts
    where
        visible_from <= {{ cut() }}
        and (visible_to is null or visible_to > {{ cut() }})

),

-- What the job asks for is what its newest attempt started with: its first segment.
newest_of_job as (

    select *
    from visible
    where job_id is not null
    qualify row_number() over (
        partition by job_id order by attempt_ended_at desc, attempt_id desc, segment_number asc
    ) = 1

),

-- Without a list the job may run on anything; a list that cannot be read allows nothing.
jobs as (

    select
        *,
        case
            when eligible_hardware is not null
                then coalesce(try(from_json(eligible_hardware, '["VARCHAR"]')), [])
        end as eligible_types
    from newest_of_job
    where night >= {{ cut() }} - {{ required_var("active_days", 1) }}

),

offers as (

    select distinct
        hardware_type,
        pool
    from visible
    where night >= {{ cut() }} - {{ required_var("hardware_seen_days", 1) }}

),

-- A pool without a price of its own takes the one of the default pool.
priced_offers as (

    select
        offers.hardware_type,
        offers.pool,
        prices.usd_per_device_hour,
        case when prices.usd_per_device_hour is not null then prices.price_version end as price_version,
        prices.usd_per_device_hour is not null and prices.is_price_backfilled as is_price_backfilled,
        case
            when prices.usd_per_device_hour is null then ''
            when prices.is_assumption and prices.is_price_backfilled then 'assumed price, of a later date'
            when prices.is_assumption then 'assumed price'
            when prices.is_price_backfilled then 'price of a later date'
            else ''
        end as price_note
    from offers
    left join prices
        on
            offers.hardware_type = prices.hardware_type
            and prices.pool in (offers.pool, 'default')
    qualify row_number() over (
        partition by offers.hardware_type, offers.pool order by prices.pool = offers.pool desc
    ) = 1

),

paired as (

    select
        jobs.job_id as job_key,
        {{ submission_columns('jobs') }},
        jobs.num_devices,
        priced_offers.pool,
        {{ hardware_columns('hardware') }},
        priced_offers.usd_per_device_hour,
        priced_offers.price_version,
        priced_offers.is_price_backfilled,
        priced_offers.price_note,
        case
            when priced_offers.usd_per_device_hour is null then 'no price'
            when not list_contains(jobs.eligible_types, priced_offers.hardware_type)
                then 'not in the job''s eligible list'
            else ''
        end as reason
    from jobs
    cross join priced_offers
    inner join hardware on priced_offers.hardware_type = hardware.hardware_type

),

candidates as (

    select
        * exclude (reason),
        reason = '' as eligible,
        reason
    from paired

)

select * from candidates
order by job_key, hardware_type, num_devices, pool
