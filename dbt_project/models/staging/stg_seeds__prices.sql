with

prices as (

    select * from {{ ref('prices') }}

),

typed as (

    select
        hardware_type,
        coalesce(pool, 'default') as pool,
        price_list,
        try_cast(usd_per_device_hour as double) as listed_price,
        cast(valid_from as date) as valid_from,
        price_list || '@' || cast(cast(valid_from as date) as varchar) as price_version,
        source,
        cast(is_assumption as boolean) as is_assumption,
        note
    from prices

),

-- Zero, a negative number or no number is no price: what costs nothing would rank first.
valued as (

    select
        * exclude (listed_price),
        case when {{ is_positive('listed_price') }} then listed_price end as usd_per_device_hour
    from typed

)

select * from valued
