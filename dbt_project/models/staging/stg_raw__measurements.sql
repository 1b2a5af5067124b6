with

measurements as (

    select * from {{ source('raw', 'measurements') }}

),

typed as (

    select
        content_hash,
        trim(model_type) as model_type,
        nullif(trim(task), '') as task,
        nullif(trim(framework), '') as framework,
        nullif(trim(precision), '') as precision,
        nullif(trim(optimizer), '') as optimizer,
        per_device_batch_size,
        coalesce(global_batch_size, per_device_batch_size * num_devices) as global_batch_size,
        sequence_length,
        image_size,
        parameters_m,

        cast(num_devices as double) as num_devices,
        cast(num_nodes as double) as num_nodes,
        hardware_name,
        hardware_type,

        throughput as reported_throughput,
        throughput_unit,
        throughput_scope,
        utilisation,
        measured_on,
        publisher,
        notes,

        source,
        slice,
        file,
        line,
        received_at

    from measurements

)

select * from typed
