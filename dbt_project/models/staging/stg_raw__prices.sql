with

prices as (

    select * from {{ source('raw', 'prices') }}

),

-- Another figure for the same first day is a further version of the price.
versioned as (

    select
        *,
        row_number() over (
            partition by hardware_type, pool, price_list, valid_from
            order by known_from, content_hash
        ) as version
    from prices

),

typed as (

    select
        hardware_type,
        pool,
        price_list,
        version,
        case when {{ is_positive('usd_per_device_hour') }} then usd_per_device_hour end as usd_per_device_hour,
        valid_from,
        valid_to,
        known_from,
        price_list || '@' || cast(valid_from as varchar)
        || case when version > 1 then '.v' || cast(version as varchar) else '' end as price_version,
        published_by as source,
        is_assumption,
        note
    from versioned

)

select * from typed
