with

hardware_types as (

    select * from {{ ref('hardware_types') }}

),

typed as (

    select
        hardware_type,
        vendor,
        family,
        form_factor,
        cast(memory_bytes as double) as memory_bytes,
        cast(memory_bandwidth_gbps as double) as memory_bandwidth_gbps,
        cast(peak_bf16_tflops as double) as peak_bf16_tflops,
        cast(peak_fp8_tflops as double) as peak_fp8_tflops,
        cast(peak_fp32_tflops as double) as peak_fp32_tflops,
        cast(interconnect_gbps as double) as interconnect_gbps,
        cast(tdp_watts as double) as tdp_watts,
        cast(release_year as integer) as release_year,
        source
    from hardware_types

)

select * from typed
order by hardware_type
