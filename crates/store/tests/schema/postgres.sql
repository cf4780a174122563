-- One line for each table, index, constraint, trigger, view and first row of a PostgreSQL database.
SELECT 'table ' || t.relname || ': ' || string_agg(
    a.attname || ' ' || format_type(a.atttypid, a.atttypmod) || CASE WHEN a.attnotnull THEN ' not null' ELSE '' END
    || coalesce(' default ' || pg_get_expr(d.adbin, d.adrelid), '')
    || CASE WHEN a.attcollation <> y.typcollation THEN ' collate ' || a.attcollation::regcollation ELSE '' END,
    ', ' ORDER BY a.attname)
FROM pg_class t
JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_type y ON y.oid = a.atttypid
LEFT JOIN pg_attrdef d ON d.adrelid = t.oid AND d.adnum = a.attnum
WHERE t.relnamespace = 'public'::regnamespace AND t.relkind IN ('r', 'p', 'v') AND t.relname <> 'seaql_migrations'
GROUP BY t.relname
UNION ALL
-- Without names. Since version 18 NOT NULL is a constraint, too.
SELECT 'constraint of ' || conrelid::regclass || ': ' || pg_get_constraintdef(oid) FROM pg_constraint
WHERE connamespace = 'public'::regnamespace AND contype <> 'n' AND conrelid <> 'seaql_migrations'::regclass
UNION ALL
SELECT 'index: ' || pg_get_indexdef(i.indexrelid)
FROM pg_index i JOIN pg_class t ON t.oid = i.indrelid
WHERE t.relnamespace = 'public'::regnamespace
    AND NOT EXISTS (SELECT 1 FROM pg_constraint c WHERE c.conindid = i.indexrelid AND c.contype IN ('p', 'u'))
UNION ALL
SELECT 'trigger: ' || pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
UNION ALL
SELECT 'routine: ' || oid::regprocedure FROM pg_proc WHERE pronamespace = 'public'::regnamespace
UNION ALL
SELECT 'sequence: ' || oid::regclass FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relkind = 'S'
UNION ALL
SELECT 'row of workspaces: ' || id || ' ' || name || ' ' || created_at FROM workspaces
UNION ALL
SELECT 'row of knowledge_numbers: ' || name || ' ' || last FROM knowledge_numbers
