-- One row per hardware type and pool: the newest price at the cut, else the first one, which then holds backwards.
with

prices as (

    select * from {{ ref('stg_seeds__prices') }}
    where price_list = '{{ required_var("price_list", "list") }}'

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
    where preference = 1

)

select * from as_of_cut
