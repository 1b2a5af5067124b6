with

attempts as (

    select * from {{ ref('stg_raw__job_attempts') }}

),

factored as (

    select
        *,
        case throughput_unit
            when 'samples/s' then 1.0
            when 'tokens/s' then 1.0 / nullif(sequence_length, 0)
            when 'steps/s' then global_batch_size
        end as samples_per_unit,
        case throughput_scope
            when 'job' then 1.0
            when 'node' then num_nodes
            when 'device' then num_devices
        end as scopes_per_job
    from attempts

),

converted as (

    select
        * exclude (samples_per_unit, scopes_per_job),
        reported_throughput * samples_per_unit * scopes_per_job as throughput
    from factored

)

select * from converted
