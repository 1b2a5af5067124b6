{# The statement that makes `marts.state_history` from `examples`. #}
{% macro state_history_statement(levels, examples) %}
with

evidence as materialized (
    {{- state_evidence(levels, examples) }}
),
{{ state_history_of(levels, "evidence") }}
{% endmacro %}

{# The rest of that statement, from `evidence` as `state_evidence` gives it: the whole, or, with `changed` as `state_changed` gives
   it, the rows of the keys in it from their first night on. Both give the same rows to the last bit: sums are of whole
   billionths, which are exact in whatever order they are added, and a median depends on no order.

   A key that is asked for few nights, or rests on little evidence, is joined with its evidence night by night. That would grow
   with the square of time for the others: their sums are running sums over the nights, and their medians are found by rank.
   Evidence is put into buckets of neighbouring values, the buckets are counted night by night, and only the one that holds the
   middle is opened. Which keys are large, and how wide buckets are, decides time alone: counting a bucket costs as much as opening
   some fifty values of one.

   All CTEs are materialized: most are read more than once, and where DuckDB chose, it now and then took 40 times as long. #}
{% macro state_history_of(levels, evidence, changed=none) %}
{%- for level, columns in levels.items() %}

{{ state_of_level(level, columns, "_" ~ level, evidence, changed) }},
{%- endfor %}

counted as (
    {%- for level in levels %}
    select * from counted_{{ level }}
    {%- if not loop.last %}
    union all
    {%- endif %}
    {%- endfor %}
),

history as (
    select
        counted.level,
        counted.key,
        counted.night,
        counted.evidence_count,
        evidence.log_throughput_per_device as last_log_throughput,
        counted.median_log_throughput,
        sqrt(cast(
            counted.evidence_count * counted.sum_of_squared_units - counted.sum_of_units * counted.sum_of_units as double
        )) / (nullif(counted.evidence_count, 0) * 1e9) as spread_log_throughput,
        {%- for name in state_means() %}
        cast(counted.sum_of_{{ name }}_units as double) / (nullif(counted.{{ name }}_count, 0) * 1e9) as mean_log_{{ name }},
        {%- endfor %}
        evidence.ended_at as last_ended_at
    from counted
    left join {{ evidence }} as evidence on counted.last_recency = evidence.recency
)

select * from history
{% endmacro %}

{% macro state_means() %}
    {{ return(["peak", "devices", "batch"]) }}
{% endmacro %}

{# One row per example: the parts of its keys and what it says. `recency` orders by end, `attempt_id`, `segment_number`, `version`
   break ties; it is numbered within days because one order of all examples would be sorted by one thread. #}
{% macro state_evidence(levels, examples, with_hash=false) %}
    {%- set parts = [] %}
    {%- for column in state_key_columns(levels) %}
        {%- do parts.append(state_key_part(column)) %}
    {%- endfor %}
    {%- set peak = "coalesce(peak_bf16_tflops, peak_fp32_tflops)" %}
    select
        {%- for column in state_key_columns(levels) %}
        {{ parts[loop.index0] }} as {{ column }},
        {%- endfor %}
        {%- if with_hash %}
        hash(
            attempt_id, segment_number, version, ended_at, visible_from, log_throughput_per_device, {{ peak }},
            num_devices, global_batch_size, {{ parts | join(", ") }}
        ) as evidence_hash,
        {%- endif %}
        visible_from,
        visible_to,
        ended_at,
        epoch_us(ended_at) // 86400000000 * 4294967296 + row_number() over (
            partition by epoch_us(ended_at) // 86400000000
            order by ended_at, attempt_id, segment_number, version
        ) as recency,
        log_throughput_per_device,
        {{ in_billionths("log_throughput_per_device") }} as units,
        {{ in_billionths(log_of_positive(peak)) }} as peak_units,
        {{ in_billionths("ln(num_devices)") }} as devices_units,
        {{ in_billionths(log_of_positive("global_batch_size")) }} as batch_units
    from {{ examples }}
{%- endmacro %}

{% macro in_billionths(expression) %}
    {{ return("cast(round((" ~ expression ~ ") * 1e9) as bigint)") }}
{% endmacro %}

{# The CTEs of one level, the last of them `counted`; `l` ends their names. #}
{% macro state_of_level(level, columns, l, evidence, changed) -%}
-- The parts make the key and the key its parts: no name contains the separator.
keys{{ l }} as materialized (
    select
        *,
        row_number() over () as key_id,
        {{ state_key(columns) }} as key
    from (
        select
            {{ columns | join(", ") }}
            {%- if changed %},
            min(from_night) as from_night
            {%- endif %}
        from {{ changed or evidence }}
        where {{ columns | join(" is not null and ") }} is not null
        group by {{ columns | join(", ") }}
    )
),

keyed{{ l }} as materialized (
    select
        keys.key_id,
        evidence.visible_from,
        evidence.visible_to,
        evidence.recency,
        evidence.log_throughput_per_device,
        evidence.units,
        {%- for name in state_means() %}
        evidence.{{ name }}_units{{ "," if not loop.last }}
        {%- endfor %}
    from {{ evidence }} as evidence
    inner join keys{{ l }} as keys
        on {% for column in columns %}evidence.{{ column }} = keys.{{ column }}{{ " and " if not loop.last }}{% endfor %}
),

asked{{ l }} as materialized (
    select nights.key_id, nights.night
    from (
        select key_id, visible_from as night from keyed{{ l }}
        union
        select key_id, visible_to as night from keyed{{ l }} where visible_to is not null
    ) as nights
    {%- if changed %}
    inner join keys{{ l }} as keys on nights.key_id = keys.key_id and nights.night >= keys.from_night
    {%- endif %}
),

sized{{ l }} as materialized (
    select
        held.key_id,
        held.examples,
        nights.nights > 4 and held.examples > 16 as is_large
    from (select key_id, count(*) as examples from keyed{{ l }} group by key_id) as held
    inner join (select key_id, count(*) as nights from asked{{ l }} group by key_id) as nights on held.key_id = nights.key_id
),

small{{ l }} as materialized (
    select
        asked.key_id,
        asked.night,
        count(keyed.recency) as evidence_count,
        coalesce(sum(keyed.units), 0) as sum_of_units,
        coalesce(sum(cast(keyed.units as hugeint) * keyed.units), 0) as sum_of_squared_units,
        {%- for name in state_means() %}
        count(keyed.{{ name }}_units) as {{ name }}_count,
        coalesce(sum(keyed.{{ name }}_units), 0) as sum_of_{{ name }}_units,
        {%- endfor %}
        max(keyed.recency) as last_recency,
        median(keyed.log_throughput_per_device) as median_log_throughput
    from (select * from asked{{ l }} where key_id in (select key_id from sized{{ l }} where not is_large)) as asked
    left join keyed{{ l }} as keyed
        on
            asked.key_id = keyed.key_id
            and asked.night >= keyed.visible_from
            and (keyed.visible_to is null or asked.night < keyed.visible_to)
    group by asked.key_id, asked.night
),

large{{ l }} as materialized (
    select
        keyed.*,
        (row_number() over (partition by keyed.key_id order by keyed.log_throughput_per_device) - 1)
        // greatest(64, cast(4 * sqrt(sized.examples) as bigint)) as bucket
    from keyed{{ l }} as keyed
    inner join sized{{ l }} as sized on keyed.key_id = sized.key_id
    where sized.is_large
),

changes{{ l }} as materialized (
    select
        *,
        visible_from as night,
        1 as sign,
        case when visible_to is null then recency end as lasting_recency
    from large{{ l }}
    union all
    select
        *,
        visible_to as night,
        -1 as sign,
        null as lasting_recency
    from large{{ l }}
    where visible_to is not null
),

nightly{{ l }} as materialized (
    select
        key_id,
        night,
        sum(sign) as evidence_count,
        max(lasting_recency) as lasting_recency,
        sum(sign * units) as sum_of_units,
        sum(sign * cast(units as hugeint) * units) as sum_of_squared_units,
        {%- for name in state_means() %}
        sum(sign) filter (where {{ name }}_units is not null) as {{ name }}_count,
        sum(sign * {{ name }}_units) as sum_of_{{ name }}_units{{ "," if not loop.last }}
        {%- endfor %}
    from changes{{ l }}
    group by key_id, night
),

grown{{ l }} as materialized (
    select
        key_id,
        night,
        cast(sum(evidence_count) over nights as bigint) as evidence_count,
        sum(sum_of_units) over nights as sum_of_units,
        sum(sum_of_squared_units) over nights as sum_of_squared_units,
        {%- for name in state_means() %}
        cast(coalesce(sum({{ name }}_count) over nights, 0) as bigint) as {{ name }}_count,
        coalesce(sum(sum_of_{{ name }}_units) over nights, 0) as sum_of_{{ name }}_units,
        {%- endfor %}
        max(lasting_recency) over nights as lasting_recency
    from nightly{{ l }}
    window nights as (partition by key_id order by night rows between unbounded preceding and current row)
),

-- The newest evidence that is withdrawn later, on the nights that see it; the newest that stays is a running maximum.
fleeting{{ l }} as materialized (
    select
        asked.key_id,
        asked.night,
        max(large.recency) as recency
    from large{{ l }} as large
    inner join asked{{ l }} as asked
        on
            large.key_id = asked.key_id
            and asked.night >= large.visible_from
            and asked.night < large.visible_to
    group by asked.key_id, asked.night
),

bucket_changes{{ l }} as materialized (
    select key_id, bucket, night, sum(sign) as change, false as is_asked
    from changes{{ l }}
    group by key_id, bucket, night
    union all
    select buckets.key_id, buckets.bucket, asked.night, 0 as change, true as is_asked
    from (select key_id, unnest(range(max(bucket) + 1)) as bucket from large{{ l }} group by key_id) as buckets
    inner join asked{{ l }} as asked on buckets.key_id = asked.key_id
),

-- Of the two rows that a bucket may have of a night, the one asked for comes last: it counts what changed on that night too.
bucket_counts{{ l }} as materialized (
    select
        key_id,
        bucket,
        night,
        cast(sum(change) over (
            partition by key_id, bucket order by night, is_asked rows between unbounded preceding and current row
        ) as bigint) as held
    from bucket_changes{{ l }}
    qualify is_asked
),

middles{{ l }} as materialized (
    select
        key_id,
        bucket,
        night,
        cast(sum(held) over buckets as bigint) - held as below,
        cast(sum(held) over (partition by key_id, night) as bigint) as evidence_count
    from bucket_counts{{ l }}
    window buckets as (partition by key_id, night order by bucket rows between unbounded preceding and current row)
    qualify below < evidence_count // 2 + 1 and below + held >= (evidence_count + 1) // 2
),

-- Of an even number of values two are in the middle, and may stand in two buckets.
opened{{ l }} as materialized (
    select
        middles.key_id,
        middles.night,
        unnest(list_slice(
            list_sort(list(large.log_throughput_per_device)),
            greatest((middles.evidence_count + 1) // 2 - middles.below, 1),
            middles.evidence_count // 2 + 1 - middles.below
        )) as log_throughput_per_device
    from middles{{ l }} as middles
    inner join large{{ l }} as large
        on
            middles.key_id = large.key_id
            and middles.bucket = large.bucket
            and middles.night >= large.visible_from
            and (large.visible_to is null or middles.night < large.visible_to)
    group by middles.key_id, middles.night, middles.bucket, middles.below, middles.evidence_count
),

medians{{ l }} as materialized (
    select key_id, night, median(log_throughput_per_device) as median_log_throughput
    from opened{{ l }}
    group by key_id, night
),

known{{ l }} as materialized (
    select * from small{{ l }}
    union all by name
    select
        grown.* exclude (lasting_recency),
        greatest(grown.lasting_recency, fleeting.recency) as last_recency,
        medians.median_log_throughput
    from grown{{ l }} as grown
    inner join asked{{ l }} as asked on grown.key_id = asked.key_id and grown.night = asked.night
    left join fleeting{{ l }} as fleeting on grown.key_id = fleeting.key_id and grown.night = fleeting.night
    left join medians{{ l }} as medians on grown.key_id = medians.key_id and grown.night = medians.night
),

counted{{ l }} as materialized (
    select
        '{{ level }}' as level,
        keys.key,
        known.* exclude (key_id)
    from known{{ l }} as known
    inner join keys{{ l }} as keys on known.key_id = keys.key_id
)
{%- endmacro %}
