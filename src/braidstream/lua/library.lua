--[[ The registered functions. `allow-oom`: deletions, also replicated ones, must work when memory is full; such
     a function frees more than it adds. ]]
-- uses: acks, braids, chosen, consumer_groups, database, deadline, entries, idempotence, journals, logs,
-- mending, merging, natives, promotions, ranges, scopes, streams, teams, trims
redis.register_function('bs_strand_ensure', streams.ensure)
redis.register_function('bs_strand_undo_ensure', streams.undo_ensure)
redis.register_function('bs_strand_apply', streams.apply)
redis.register_function('bs_strand_apply_even', streams.apply_even)
redis.register_function({ function_name = 'bs_strand_raise', callback = streams.raise, flags = { 'allow-oom' } })
redis.register_function({ function_name = 'bs_journal_apply', callback = journals.apply, flags = { 'allow-oom' } })
redis.register_function({ function_name = 'bs_journal_skip', callback = journals.skip, flags = { 'allow-oom' } })
redis.register_function({ function_name = 'bs_braid_merge', callback = merging.merge, flags = { 'allow-oom' } })
redis.register_function({ function_name = 'bs_braid_state', callback = acks.state, flags = { 'allow-oom' } })
redis.register_function({ function_name = 'bs_braid_look', callback = acks.look, flags = { 'no-writes' } })
redis.register_function({ function_name = 'bs_braid_glance', callback = acks.glance, flags = { 'no-writes' } })
redis.register_function({ function_name = 'bs_strand_trim', callback = trims.strand_trim, flags = { 'allow-oom' } })
redis.register_function({ function_name = 'bs_strand_note', callback = trims.strand_note, flags = { 'allow-oom' } })
redis.register_function({
  function_name = 'bs_process',
  callback = function() return trims.process() or '' end,
  flags = { 'no-writes' },
})
redis.register_function('bs_strand_mend', mending.mend)
redis.register_function('bs_strand_weave', mending.weave)
redis.register_function('bs_journal_redo', mending.redo_journal)
redis.register_function('bs_log_ensure', logs.ensure)
redis.register_function({ function_name = 'bs_log_configure', callback = logs.configure, flags = { 'allow-oom' } })
redis.register_function('bs_log_take', logs.take)
redis.register_function({ function_name = 'bs_log_tick', callback = logs.tick, flags = { 'allow-oom' } })
redis.register_function({ function_name = 'bs_log_older', callback = logs.older, flags = { 'no-writes' } })
redis.register_function({ function_name = 'bs_log_seal', callback = logs.seal, flags = { 'allow-oom' } })
redis.register_function({ function_name = 'bs_log_force', callback = logs.force, flags = { 'allow-oom' } })
redis.register_function('bs_log_rescue', logs.rescue)
redis.register_function('bs_log_copy', logs.copy)
redis.register_function('bs_log_swap', logs.swap)
redis.register_function('bs_log_admit', logs.admit)
redis.register_function('bs_log_message', logs.message)
redis.register_function({ function_name = 'bs_log_ack', callback = logs.ack, flags = { 'allow-oom' } })
redis.register_function('bs_chosen_add', chosen.add)
redis.register_function('bs_chosen_setid', chosen.setid)
redis.register_function('bs_idempotence_add', idempotence.add)
redis.register_function('bs_idempotence_one', idempotence.one)
redis.register_function('bs_idempotence_configure', idempotence.configure)
redis.register_function('bs_idempotence_mark', idempotence.mark)
redis.register_function('bs_later_promote', promotions.promote)
redis.register_function({ function_name = 'bs_team_beat', callback = teams.beat, flags = { 'allow-oom' } })
redis.register_function({ function_name = 'bs_team_hold', callback = teams.hold, flags = { 'allow-oom' } })
redis.register_function({
  function_name = 'bs_idempotence_count',
  callback = idempotence.count,
  flags = { 'no-writes' },
})
redis.register_function({ function_name = 'bs_braid_expire', callback = deadline.set, flags = { 'allow-oom' } })
redis.register_function({ function_name = 'bs_braid_due', callback = deadline.carry_out, flags = { 'allow-oom' } })
redis.register_function({ function_name = 'bs_braid_registry', callback = deadline.registry, flags = { 'no-writes' } })
redis.register_function('bs_braid_adopt', braids.adopt)
redis.register_function('bs_native_adopt', natives.adopt)
redis.register_function('bs_native_release', natives.release)
redis.register_function({ function_name = 'bs_native_unfence', callback = natives.unfence, flags = { 'allow-oom' } })
redis.register_function('bs_native_set_aside', natives.set_aside)
redis.register_function('bs_native_append', natives.append)
redis.register_function({ function_name = 'bs_entry_drop', callback = entries.drop, flags = { 'allow-oom' } })
redis.register_function({ function_name = 'bs_entry_trim', callback = entries.trim, flags = { 'allow-oom' } })
redis.register_function({ function_name = 'bs_strand_cut', callback = entries.cut, flags = { 'allow-oom' } })
redis.register_function({ function_name = 'bs_entry_list', callback = entries.list, flags = { 'no-writes' } })
redis.register_function({ function_name = 'bs_entry_page', callback = entries.page, flags = { 'no-writes' } })
redis.register_function('bs_group_create', consumer_groups.create)
redis.register_function({ function_name = 'bs_group_setid', callback = consumer_groups.setid, flags = { 'allow-oom' } })
redis.register_function({ function_name = 'bs_group_scope', callback = scopes.change, flags = { 'allow-oom' } })
redis.register_function('bs_group_join', ranges.join_strands)
redis.register_function({ function_name = 'bs_group_read', callback = ranges.read_group, flags = { 'allow-oom' } })
redis.register_function({ function_name = 'bs_group_ask', callback = consumer_groups.ask, flags = { 'allow-oom' } })
redis.register_function({ function_name = 'bs_group_wait', callback = consumer_groups.wait, flags = { 'allow-oom' } })
redis.register_function({
  function_name = 'bs_group_destroy',
  callback = consumer_groups.destroy,
  flags = { 'allow-oom' },
})
redis.register_function({ function_name = 'bs_braid_delete', callback = braids.delete, flags = { 'allow-oom' } })
redis.register_function({ function_name = 'bs_region_writers', callback = database.writers, flags = { 'allow-oom' } })
redis.register_function({ function_name = 'bs_region_alive', callback = database.alive, flags = { 'allow-oom' } })
redis.register_function({
  function_name = 'bs_database_flush',
  callback = database.flush,
  flags = { 'allow-oom', 'no-cluster' },
})
redis.register_function({
  function_name = 'bs_version',
  callback = function() return VERSION end,
  flags = { 'no-writes' },
})
