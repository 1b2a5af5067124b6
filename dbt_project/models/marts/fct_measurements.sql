with

measurements as (

    select * from {{ ref('stg_raw__measurements') }}

),

hardware as (

    select hardware_type from {{ ref('dim_hardware_type') }}

),

-- A step is one of the whole job, in whatever scope.
factored as (

    select
        *,
        case throughput_unit
            when 'samples/s' then 1.0
            when 'tokens/s' then 1.0 / nullif(sequence_length, 0)
            when 'steps/s' then global_batch_size
        end as samples_per_unit,
        case
            when throughput_scope = 'job' or throughput_unit = 'steps/s' then 1.0
            when throughput_scope = 'node' then num_nodes
            when throughput_scope = 'device' then num_devices
        end as scopes_per_job
    from measurements

),

converted as (

    select
        content_hash,
        model_type,
        task,
        framework,
        precision,
        optimizer,
        global_batch_size,
        sequence_length,
        image_size,
        parameters_m,
        num_devices,
        hardware_type,
        reported_throughput * samples_per_unit * scopes_per_job as throughput,
        case
            when samples_per_unit is null and throughput_unit = 'tokens/s' then 'sequence_length is not stated'
            when samples_per_unit is null then 'global_batch_size is not stated'
            when scopes_per_job is null then 'num_nodes is not stated'
        end as unconverted_because,
        reported_throughput,
        throughput_unit,
        throughput_scope,
        measured_on,
        publisher,
        source,
        slice
    from factored
    where hardware_type in (select hardware.hardware_type from hardware)

)

select * from converted
order by content_hash
