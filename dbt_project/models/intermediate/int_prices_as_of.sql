-- One row per hardware type and pool: the newest price at the cut, else the first one, which then holds backwards. Of a price
-- that was listed with another figure later a cut takes the version that it knew: what a past night paid never moves.
with

listed as (

    select * from {{ ref('stg_raw__prices') }}
    where price_list = '{{ required_var("price_list", "list") }}'

),

known as (

    select
        *,
        row_number() over (
            partition by hardware_type, pool, valid_from
            order by known_from < {{ cut() }} desc, case when known_from < {{ cut() }} then version end desc, version
        ) as version_preference
    from listed

),

prices as (

    select * exclude (version_preference)
    from known
    where version_preference = 1

),

ranked as (

    select
        *,
        valid_from > {{ cut() }} as is_price_backfilled,
        row_number() over (
            partition by hardware_type, pool
            order by
                valid_from > {{ cut() }},
                case when valid_from <= {{ cut() }} then valid_from end desc,
                valid_from
        ) as preference
    from prices

),

as_of_cut as (

    select * exclude (preference)
    from ranked
    where preference = 1 and coalesce(valid_to > {{ cut() }}, true)

)

select * from as_of_cut
