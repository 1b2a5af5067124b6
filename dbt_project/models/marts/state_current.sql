with

history as (

    select * from {{ ref('state_history') }}
    where night <= {{ cut() }}

),

newest as (

    select * from history
    qualify row_number() over (partition by level, key order by night desc) = 1

),

known as (

    select * from newest
    where evidence_count > 0

)

select * from known
order by level, key
