{{ config(materialized='state_history') }}

{%- set levels = required_var("state_levels", {"model": ["model_type"]}) %}

{{ state_history_statement(levels, ref('fct_training_examples')) }}
