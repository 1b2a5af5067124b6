{# Segments of an attempt, as known now, follow each other: an attempt is on one number of devices at a time. #}
{% test segments_do_not_overlap(model) %}

with

segments as (

    select
        attempt_id,
        segment_number,
        started_at,
        ended_at,
        max(ended_at) over (
            partition by attempt_id
            order by started_at, segment_number
            rows between unbounded preceding and 1 preceding
        ) as others_ended_at
    from {{ model }}
    where is_newest

)

select * from segments
where started_at < others_ended_at

{% endtest %}
