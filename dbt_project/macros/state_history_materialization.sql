{# How a night builds `marts.state_history`: the keys of which any example came, changed or went since the last build are made
   anew from the first night that it touches on; everything is, level by level, where that cannot be told or the model's statement
   is another than the one that built the table (other levels, another LEAP).

   Beside the table stands `intermediate.state_history_evidence`, the examples that it rests on, under a comment that names the
   statement. Both change in one transaction, so that they always agree. A watermark would not do: a correction, a late log with
   old times or another entry in the hardware catalogue change old nights too. #}
{% materialization state_history, adapter="duckdb", supported_languages=["sql"] %}
    {%- set levels = required_var("state_levels") %}
    {%- set examples = ref("fct_training_examples") %}
    {%- set target = this.incorporate(type="table") %}
    {%- set seen = "intermediate.state_history_evidence" %}
    {%- set definition = local_md5(compiled_code) %}
    {%- set existing = load_cached_relation(this) %}
    {%- set is_whole = should_full_refresh() or existing is none or not existing.is_table or state_definition() != definition %}

    {{ run_hooks(pre_hooks, inside_transaction=False) }}
    {{ run_hooks(pre_hooks, inside_transaction=True) }}

    {% call statement("evidence") %}
        create schema if not exists intermediate;
        create or replace temp table state_evidence as
            {{ state_evidence(levels, examples, with_hash=true) }};
    {% endcall %}

    {% if is_whole %}
        {% do drop_relation_if_exists(existing) %}
        {% call statement("main") %}
            create table {{ target }}
            {{ get_assert_columns_equivalent(state_history_statement(levels, "(from " ~ examples ~ " limit 0)")) }}
            {{ get_table_columns_and_constraints() }};
            create or replace table {{ seen }} as {{ state_seen(levels) }};
            comment on table {{ seen }} is '{{ definition }}';
        {% endcall %}
    {% else %}
        {% call statement("main") %}
            create or replace temp table state_changed as {{ state_changed(levels, seen) }};
            create or replace temp table state_affected as {{ state_affected(levels) }};
            delete from {{ target }} as history
            using state_affected as affected
            where
                history.level = affected.level
                and history.key = affected.key
                and history.night >= affected.from_night;
            delete from {{ seen }} where evidence_hash in (select evidence_hash from state_changed);
            insert into {{ seen }}
            {{ state_seen(levels) }}
            where evidence_hash in (select evidence_hash from state_changed);
        {% endcall %}
    {% endif %}

    {# Level by level: what one level needs is let go before the next. #}
    {% for level, columns in levels.items() %}
        {% call statement("level_" ~ level) %}
            insert into {{ target }} by name
            with
            {{ state_history_of({level: columns}, "state_evidence", none if is_whole else "state_changed") }};
        {% endcall %}
    {% endfor %}

    {% call statement("release") %}
        drop table if exists state_evidence;
        drop table if exists state_changed;
        drop table if exists state_affected;
    {% endcall %}

    {{ run_hooks(post_hooks, inside_transaction=True) }}
    {% do persist_docs(target, model) %}
    {% do adapter.commit() %}
    {{ run_hooks(post_hooks, inside_transaction=False) }}

    {{ return({"relations": [target]}) }}
{% endmaterialization %}

{# The md5 of the statement that the table was built with; none where it is not known. #}
{% macro state_definition() %}
    {% set found = run_query(
        "select comment from duckdb_tables() where database_name = current_database()"
        ~ " and schema_name = 'intermediate' and table_name = 'state_history_evidence'"
    ) %}
    {{ return(found.columns[0].values()[0] if found.rows | length else none) }}
{% endmacro %}

{% macro state_seen(levels) %}
    select
        evidence_hash,
        visible_from,
        visible_to,
        {{ state_key_columns(levels) | join(", ") }}
    from state_evidence
{% endmacro %}

{# What came, went, or was withdrawn on another night since the last build, and the first night that sees it. #}
{% macro state_changed(levels, seen) %}
    {%- set unchanged = "evidence.evidence_hash = seen.evidence_hash and evidence.visible_to is not distinct from seen.visible_to" %}
    with

    added as (
        select evidence.* from state_evidence as evidence
        anti join {{ seen }} as seen on {{ unchanged }}
    ),

    removed as (
        select seen.* from {{ seen }} as seen
        anti join state_evidence as evidence on {{ unchanged }}
    )

    select
        {%- for column in ["evidence_hash"] + state_key_columns(levels) %}
        coalesce(added.{{ column }}, removed.{{ column }}) as {{ column }},
        {%- endfor %}
        case
            when added.evidence_hash = removed.evidence_hash then least(added.visible_to, removed.visible_to)
            else coalesce(added.visible_from, removed.visible_from)
        end as from_night
    from added
    full join removed on added.evidence_hash = removed.evidence_hash
{% endmacro %}

{% macro state_affected(levels) %}
    {%- for level, columns in levels.items() %}
    select
        '{{ level }}' as level,
        {{ state_key(columns) }} as key,
        min(from_night) as from_night
    from state_changed
    where {{ state_key(columns) }} is not null
    group by all
    {{ "union all" if not loop.last }}
    {%- endfor %}
{% endmacro %}
