--[[ The registered functions. `allow-oom`: deletions, also replicated ones, must work when memory is full; such
     a function frees more than it adds. ]]
redis.register_function('bs_strand_ensure', strand_ensure)
redis.register_function('bs_strand_undo_ensure', strand_undo_ensure)
redis.register_function('bs_strand_apply', batches.strand_apply)
redis.register_function('bs_strand_apply_even', batches.strand_apply_even)
redis.register_function { function_name = 'bs_strand_raise', callback = strand_raise, flags = { 'allow-oom' } }
redis.register_function { function_name = 'bs_journal_apply', callback = journal_apply, flags = { 'allow-oom' } }
redis.register_function { function_name = 'bs_journal_skip', callback = journal_skip, flags = { 'allow-oom' } }
redis.register_function { function_name = 'bs_braid_merge', callback = braid_merge, flags = { 'allow-oom' } }
redis.register_function { function_name = 'bs_braid_state', callback = deadline.state, flags = { 'allow-oom' } }
redis.register_function { function_name = 'bs_braid_look', callback = braid_look, flags = { 'no-writes' } }
redis.register_function { function_name = 'bs_braid_glance', callback = braid_glance, flags = { 'no-writes' } }
redis.register_function { function_name = 'bs_strand_trim', callback = trims.strand_trim, flags = { 'allow-oom' } }
redis.register_function { function_name = 'bs_strand_note', callback = trims.strand_note, flags = { 'allow-oom' } }
redis.register_function {
  function_name = 'bs_process',
  callback = function() return trims.process() or '' end,
  flags = { 'no-writes' },
}
redis.register_function('bs_strand_mend', strand_mend)
redis.register_function('bs_strand_weave', mending.strand_weave)
redis.register_function('bs_journal_redo', journal_redo)
redis.register_function('bs_log_ensure', logs.ensure)
redis.register_function { function_name = 'bs_log_configure', callback = logs.configure, flags = { 'allow-oom' } }
redis.register_function('bs_log_take', logs.take)
redis.register_function { function_name = 'bs_log_tick', callback = logs.tick, flags = { 'allow-oom' } }
redis.register_function { function_name = 'bs_log_older', callback = logs.older, flags = { 'no-writes' } }
redis.register_function { function_name = 'bs_log_seal', callback = logs.seal, flags = { 'allow-oom' } }
redis.register_function { function_name = 'bs_log_force', callback = logs.force, flags = { 'allow-oom' } }
redis.register_function('bs_log_rescue', logs.rescue)
redis.register_function('bs_log_copy', logs.copy)
redis.register_function('bs_log_swap', logs.swap)
redis.register_function('bs_log_admit', logs.admit)
redis.register_function('bs_log_message', logs.message)
redis.register_function { function_name = 'bs_log_ack', callback = logs.ack, flags = { 'allow-oom' } }
redis.register_function('bs_chosen_add', chosen_add)
redis.register_function('bs_chosen_setid', chosen_setid)
redis.register_function('bs_idempotence_add', idempotence.add)
redis.register_function('bs_idempotence_one', idempotence.one)
redis.register_function('bs_idempotence_configure', idempotence_configure)
redis.register_function('bs_idempotence_mark', idempotence.mark)
redis.register_function {
  function_name = 'bs_idempotence_count',
  callback = idempotence.count,
  flags = { 'no-writes' },
}
redis.register_function { function_name = 'bs_braid_expire', callback = deadline.set, flags = { 'allow-oom' } }
redis.register_function { function_name = 'bs_braid_due', callback = deadline.carry_out, flags = { 'allow-oom' } }
redis.register_function { function_name = 'bs_braid_registry', callback = deadline.registry, flags = { 'no-writes' } }
redis.register_function('bs_braid_adopt', braid_adopt)
redis.register_function('bs_native_adopt', native_adopt)
redis.register_function('bs_native_release', native_release)
redis.register_function { function_name = 'bs_native_unfence', callback = native_unfence, flags = { 'allow-oom' } }
redis.register_function('bs_native_set_aside', native_set_aside)
redis.register_function('bs_native_append', native_append)
redis.register_function { function_name = 'bs_entry_drop', callback = entry_drop, flags = { 'allow-oom' } }
redis.register_function { function_name = 'bs_entry_trim', callback = entry_trim, flags = { 'allow-oom' } }
redis.register_function { function_name = 'bs_entry_list', callback = entry_list, flags = { 'no-writes' } }
redis.register_function { function_name = 'bs_entry_page', callback = entry_page, flags = { 'no-writes' } }
redis.register_function('bs_group_create', group_create)
redis.register_function { function_name = 'bs_group_setid', callback = group_setid, flags = { 'allow-oom' } }
redis.register_function { function_name = 'bs_group_scope', callback = scopes.change, flags = { 'allow-oom' } }
redis.register_function('bs_group_join', ranges.join_strands)
redis.register_function { function_name = 'bs_group_read', callback = ranges.read_group, flags = { 'allow-oom' } }
redis.register_function { function_name = 'bs_group_wait', callback = group_wait, flags = { 'allow-oom' } }
redis.register_function { function_name = 'bs_group_destroy', callback = group_destroy, flags = { 'allow-oom' } }
redis.register_function { function_name = 'bs_braid_delete', callback = braid_delete, flags = { 'allow-oom' } }
redis.register_function { function_name = 'bs_region_writers', callback = region_writers, flags = { 'allow-oom' } }
redis.register_function { function_name = 'bs_region_alive', callback = region_alive, flags = { 'allow-oom' } }
redis.register_function {
  function_name = 'bs_database_flush',
  callback = database_flush,
  flags = { 'allow-oom', 'no-cluster' },
}
redis.register_function {
  function_name = 'bs_version',
  callback = function() return VERSION end,
  flags = { 'no-writes' },
}
