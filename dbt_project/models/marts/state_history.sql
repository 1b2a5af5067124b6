{%- set levels = required_var("state_levels", {"model": ["model_type"]}) -%}

with

examples as (

    select * from {{ ref('fct_training_examples') }}

),

evidence as (

    select
        *,
        row_number() over (order by ended_at, attempt_id, segment_number, version) as recency,
        {{ log_of_positive('coalesce(peak_bf16_tflops, peak_fp32_tflops)') }} as log_peak,
        ln(num_devices) as log_devices,
        {{ log_of_positive('global_batch_size') }} as log_batch,
        cast(round(log_throughput_per_device * 1e9) as hugeint) as log_units
    from examples

),

levelled as (
    {% for level, columns in levels.items() %}
    select
        '{{ level }}' as level,
        {{ state_key(columns) }} as key,
        visible_from,
        visible_to,
        recency,
        ended_at,
        log_throughput_per_device,
        log_units,
        cast(log_peak as decimal(18, 9)) as log_peak,
        cast(log_devices as decimal(18, 9)) as log_devices,
        cast(log_batch as decimal(18, 9)) as log_batch
    from evidence
    {{- "\n    union all" if not loop.last }}
    {%- endfor %}

),

keyed as (

    select * from levelled
    where key is not null

),

nights_of_change as (

    select
        level,
        key,
        visible_from as night
    from keyed
    union
    select
        level,
        key,
        visible_to as night
    from keyed
    where visible_to is not null

),

-- A night on which a key's last evidence was withdrawn keeps a row, with a count of 0. Sums are of whole billionths: a sum of
-- doubles depends on the order in which threads add them up, and the same input must give the same output.
counted as (

    select
        nights.level,
        nights.key,
        nights.night,
        count(keyed.recency) as evidence_count,
        arg_max(keyed.log_throughput_per_device, keyed.recency) as last_log_throughput,
        median(keyed.log_throughput_per_device) as median_log_throughput,
        sum(keyed.log_units) as sum_of_units,
        sum(keyed.log_units * keyed.log_units) as sum_of_squared_units,
        avg(keyed.log_peak) as mean_log_peak,
        avg(keyed.log_devices) as mean_log_devices,
        avg(keyed.log_batch) as mean_log_batch,
        arg_max(keyed.ended_at, keyed.recency) as last_ended_at
    from nights_of_change as nights
    left join keyed
        on
            nights.level = keyed.level
            and nights.key = keyed.key
            and nights.night >= keyed.visible_from
            and (keyed.visible_to is null or nights.night < keyed.visible_to)
    group by nights.level, nights.key, nights.night

),

history as (

    select
        level,
        key,
        night,
        evidence_count,
        last_log_throughput,
        median_log_throughput,
        sqrt(cast(evidence_count * sum_of_squared_units - sum_of_units * sum_of_units as double))
        / (evidence_count * 1e9) as spread_log_throughput,
        mean_log_peak,
        mean_log_devices,
        mean_log_batch,
        last_ended_at
    from counted

)

select * from history
order by level, key, night
