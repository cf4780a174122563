-- One line for each table, index, constraint, trigger, view and first row of a SQLite database.
SELECT 'table ' || t.name || iif(t.wr, ' without rowid', '') || ': ' || (
    SELECT group_concat(
        c.name || ' ' || c.type || iif(c."notnull", ' not null', '') || coalesce(' default ' || c.dflt_value, '')
        || iif(c.pk, ' key ' || c.pk, ''), ', ' ORDER BY c.name)
    FROM pragma_table_xinfo(t.name) c)
FROM pragma_table_list t
WHERE t.schema = 'main' AND t.type = 'table' AND t.name NOT LIKE 'sqlite%' AND t.name <> 'seaql_migrations'
UNION ALL
-- A unique constraint and a unique index of the same columns are equal.
SELECT 'unique ' || t.name || ': ' || (
    SELECT group_concat(c.name, ', ' ORDER BY c.seqno) FROM pragma_index_xinfo(i.name) c WHERE c.key)
FROM pragma_table_list t, pragma_index_list(t.name) i
WHERE t.schema = 'main' AND i."unique" AND i.origin <> 'pk' AND NOT i.partial AND t.name <> 'seaql_migrations'
UNION ALL
SELECT 'reference ' || t.name || '.' || f."from" || ': ' || f."table" || '.' || f."to" || ' ' || f.on_update || ' '
    || f.on_delete
FROM pragma_table_list t, pragma_foreign_key_list(t.name) f WHERE t.schema = 'main'
UNION ALL
SELECT type || ': ' || sql FROM sqlite_master
WHERE type IN ('trigger', 'view') OR sql LIKE '%CHECK%' OR sql LIKE 'CREATE VIRTUAL%' OR sql LIKE 'CREATE INDEX%'
    OR (sql LIKE 'CREATE UNIQUE%' AND sql LIKE '%WHERE%')
UNION ALL
SELECT 'row of workspaces: ' || id || ' ' || name || ' ' || created_at FROM workspaces
UNION ALL
SELECT 'row of knowledge_numbers: ' || name || ' ' || last FROM knowledge_numbers
