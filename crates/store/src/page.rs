//! Pages of rows, bounded by rows and bytes. A memory budget reserves a page before it is read.
//!
//! The size of a row is the sum of its variable-length columns. Entity queries take them from the entity; text
//! queries select through [`Columns`], which knows each column's kind.

use std::collections::HashMap;
use std::fmt;

use sea_orm::sea_query::Expr;
use sea_orm::{
    ColumnTrait, ColumnType, Condition, ConnectionTrait, EntityTrait, IdenStatic as _,
    Iterable as _, ModelTrait, QueryFilter as _, QuerySelect as _, Select, TryGetable, Value,
};

use crate::error::{StoreError, signed};
use crate::sql::{Sql, SqlRow, padded};

/// Default maximum bytes of a page.
pub const PAGE_BYTES: usize = 4 * 1024 * 1024;

/// Memory budget that reserves pages before they are read.
pub trait PageBudget: Sync {
    /// Reserves `bytes`, or refuses.
    fn take(&self, bytes: usize) -> Result<(), OverBudget>;
}

/// The budget cannot hold a page: reason code and message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverBudget {
    pub reason: &'static str,
    pub message: &'static str,
}

/// The budget of a page; none by default.
#[derive(Clone, Copy, Default)]
pub struct ReadBudget<'a>(Option<&'a dyn PageBudget>);

impl<'a> ReadBudget<'a> {
    pub fn of(budget: &'a dyn PageBudget) -> Self {
        Self(Some(budget))
    }

    /// Reserves `bytes`, or refuses.
    pub(crate) fn take(self, bytes: usize) -> Result<(), StoreError> {
        match self.0 {
            Some(budget) => budget.take(bytes).map_err(StoreError::OverBudget),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for ReadBudget<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Budget" } else { "None" })
    }
}

/// Limits of a page. The first row is always included, whatever its size.
#[derive(Clone, Copy, Debug)]
pub struct PageBound<'a> {
    pub limit: u64,
    pub bytes: usize,
    pub budget: ReadBudget<'a>,
}

impl<'a> PageBound<'a> {
    /// `limit` rows and [`PAGE_BYTES`].
    pub fn new(limit: u64, budget: &'a dyn PageBudget) -> Self {
        Self {
            budget: ReadBudget::of(budget),
            ..limit.into()
        }
    }
}

impl From<u64> for PageBound<'_> {
    fn from(limit: u64) -> Self {
        Self {
            limit,
            bytes: PAGE_BYTES,
            budget: ReadBudget::default(),
        }
    }
}

/// A page of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct ListPage<T> {
    pub items: Vec<T>,
    pub has_more: bool,
}

impl<T> ListPage<T> {
    /// Converts each item of the page.
    pub fn map<U>(self, view: impl FnMut(T) -> U) -> ListPage<U> {
        ListPage {
            items: self.items.into_iter().map(view).collect(),
            has_more: self.has_more,
        }
    }

    pub(crate) fn try_map<U>(
        self,
        read: impl FnMut(T) -> Result<U, StoreError>,
    ) -> Result<ListPage<U>, StoreError> {
        Ok(ListPage {
            items: self.items.into_iter().map(read).collect::<Result<_, _>>()?,
            has_more: self.has_more,
        })
    }
}

/// A page of entity rows.
pub(crate) struct PageOf<E: EntityTrait> {
    /// Query from the start of the page, in order.
    pub(crate) rows: Select<E>,
    /// Unique key of a row within its owner.
    pub(crate) key: E::Column,
    /// Filter of the second read, which selects rows by key.
    pub(crate) owner: Condition,
    /// A JSON list column to omit; it reads as `[]`.
    pub(crate) without: Option<E::Column>,
}

impl<E: EntityTrait> PageOf<E> {
    /// Reads the sizes of the rows, reserves those that fit, then reads them.
    pub(crate) async fn read<K>(
        self,
        conn: &impl ConnectionTrait,
        bound: PageBound<'_>,
    ) -> Result<ListPage<E::Model>, StoreError>
    where
        K: TryGetable + Into<Value> + Clone,
        E::Model: Sync,
    {
        let sizes: Vec<(K, i64)> = self
            .rows
            .clone()
            .select_only()
            .column(self.key)
            .expr_as(Expr::cust(bytes_of::<E>(self.without)), "bytes")
            // One more than the limit shows that more rows exist.
            .limit(bound.limit.saturating_add(1))
            .into_tuple()
            .all(conn)
            .await?;
        let FittingKeys { keys, has_more } = fitting(sizes, bound)?;
        let mut items = Vec::with_capacity(keys.len());
        if !keys.is_empty() {
            let rows = self.find(&keys).all(conn).await?;
            let mut rows: Vec<_> = rows.into_iter().map(Some).collect();
            // Keeps the order of the first read: the second has none. A missing row was deleted between the two.
            for key in keys {
                let key: Value = key.into();
                let is_it = |row: &&mut Option<E::Model>| {
                    row.as_ref().is_some_and(|row| row.get(self.key) == key)
                };
                items.extend(rows.iter_mut().find(is_it).and_then(Option::take));
            }
        }
        Ok(ListPage { items, has_more })
    }

    fn find<K: Into<Value> + Clone>(&self, keys: &[K]) -> Select<E> {
        let mut query = E::find()
            .filter(self.owner.clone())
            .filter(self.key.is_in(padded(keys.iter().cloned())));
        if let Some(without) = self.without {
            query = query.select_only();
            for column in E::Column::iter() {
                query = if column.as_str() == without.as_str() {
                    query.expr_as(Expr::value("[]"), column.as_str().to_owned())
                } else {
                    query.column(column)
                };
            }
        }
        query
    }
}

/// Total bytes of the variable-length columns. The database knows the length of a text without reading it.
fn bytes_of<E: EntityTrait>(without: Option<E::Column>) -> String {
    let entity = E::default();
    let table = entity.table_name();
    let counted = E::Column::iter().filter(|column| {
        let is_left_out = without.is_some_and(|without| without.as_str() == column.as_str());
        !is_left_out && is_variable(column.def().get_column_type())
    });
    sum(counted.map(|column| format!("{table}.{}", column.as_str())))
}

fn is_variable(column: &ColumnType) -> bool {
    !matches!(
        column,
        ColumnType::BigInteger | ColumnType::Integer | ColumnType::Boolean | ColumnType::Double
    )
}

fn sum(columns: impl Iterator<Item = String>) -> String {
    let bytes = columns.map(|column| format!("coalesce(octet_length({column}), 0)"));
    format!("CAST({} AS BIGINT)", bytes.collect::<Vec<_>>().join(" + "))
}

/// Columns of a text query, each an expression with an optional alias.
#[derive(Clone, Copy)]
pub(crate) struct Columns {
    /// Numbers and flags.
    pub(crate) fixed: &'static [&'static str],
    /// Texts.
    pub(crate) variable: &'static [&'static str],
}

impl Columns {
    /// All columns, as a select list.
    pub(crate) fn selected(self) -> String {
        [self.variable, self.fixed].concat().join(", ")
    }

    /// Bytes of a row.
    fn bytes(self) -> String {
        let names = self.variable.iter().map(|column| {
            let name = column.split_once(" AS ").map_or(*column, |(name, _)| name);
            name.to_owned()
        });
        sum(names)
    }
}

/// A page of rows from a text query.
pub(crate) struct TextPage<'a> {
    pub(crate) columns: Columns,
    pub(crate) from: &'a str,
    /// Filter by owner, with `owner_values`.
    pub(crate) owner: &'a str,
    pub(crate) owner_values: Vec<Value>,
    /// Expression and name of the text column that is unique within the owner.
    pub(crate) key: (&'a str, &'a str),
}

impl TextPage<'_> {
    /// Reads the sizes of the rows, reserves those that fit, then reads them. `rest`: further conditions and the
    /// order; `values` begin with those of the owner.
    pub(crate) async fn read(
        &self,
        conn: &impl Sql,
        rest: &str,
        mut values: Vec<Value>,
        bound: PageBound<'_>,
    ) -> Result<ListPage<SqlRow>, StoreError> {
        let Self {
            columns,
            from,
            owner,
            key: (key, name),
            ..
        } = self;
        values.push(signed(bound.limit.saturating_add(1)).into());
        let (bytes, last) = (columns.bytes(), values.len());
        let sql = format!(
            "SELECT {key} AS page_key, {bytes} AS page_bytes FROM {from} WHERE {owner} AND {rest} LIMIT ${last}"
        );
        let sizes = conn.query_sql(sql, values).await?;
        let size = |row: &SqlRow| Ok((row.text("page_key")?, row.number("page_bytes")?));
        let sizes: Result<Vec<_>, StoreError> = sizes.iter().map(size).collect();
        let FittingKeys { keys, has_more } = fitting(sizes?, bound)?;
        if keys.is_empty() {
            let items = Vec::new();
            return Ok(ListPage { items, has_more });
        }
        let mut values = self.owner_values.clone();
        let placeholders = padded(&keys).into_iter().map(|key| {
            values.push(key.as_str().into());
            format!("${}", values.len())
        });
        let placeholders = placeholders.collect::<Vec<_>>().join(", ");
        let selected = columns.selected();
        let sql =
            format!("SELECT {selected} FROM {from} WHERE {owner} AND {key} IN ({placeholders})");
        let rows = conn.query_sql(sql, values).await?;
        let named = rows.into_iter().map(|row| Ok((row.text(name)?, row)));
        let mut named = named.collect::<Result<HashMap<_, _>, StoreError>>()?;
        let items = keys.iter().filter_map(|key| named.remove(key)).collect();
        Ok(ListPage { items, has_more })
    }
}

/// Keys of the rows that fit a page.
pub(crate) struct FittingKeys<K> {
    pub(crate) keys: Vec<K>,
    has_more: bool,
}

/// Cuts a list of keys and sizes to a page and reserves its bytes. `sizes` has one row more than the limit.
pub(crate) fn fitting<K>(
    sizes: Vec<(K, i64)>,
    bound: PageBound<'_>,
) -> Result<FittingKeys<K>, StoreError> {
    let all = sizes.len();
    let limit = usize::try_from(bound.limit).unwrap_or(usize::MAX);
    let mut taken = 0_usize;
    let mut keys = Vec::new();
    for (key, bytes) in sizes.into_iter().take(limit) {
        let with = taken.saturating_add(usize::try_from(bytes).unwrap_or(0));
        // A row above the limit must still be readable, so the first one always fits.
        if with > bound.bytes && !keys.is_empty() {
            break;
        }
        taken = with;
        keys.push(key);
    }
    // Before the rows are read: the bytes count as soon as they arrive.
    bound.budget.take(taken)?;
    Ok(FittingKeys {
        has_more: all > keys.len(),
        keys,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entity::{audit_entries, run_rejections, runs};

    #[test]
    fn counts_every_variable_column_of_an_entity() {
        let texts = |bytes: &str| bytes.matches("octet_length").count();
        assert_eq!(texts(&bytes_of::<runs::Entity>(None)), 20);
        assert_eq!(texts(&bytes_of::<audit_entries::Entity>(None)), 14);
        let without = Some(run_rejections::Column::Excerpt);
        let left = bytes_of::<run_rejections::Entity>(without);
        assert!(
            !left.contains("excerpt") && left.contains("run_rejections.message"),
            "{left}"
        );
    }

    #[test]
    fn limits_page_bytes_and_keeps_one_row() {
        for (sizes, limit, bytes, expected, more) in [
            (&[5, 5, 5][..], 3, 15, 3, false),
            (&[5, 5, 5], 2, 15, 2, true),
            (&[5, 5, 5], 3, 14, 2, true),
            (&[50, 5], 3, 14, 1, true),
            (&[], 3, 14, 0, false),
        ] {
            let sizes = sizes.iter().enumerate().map(|(key, bytes)| (key, *bytes));
            let bound = PageBound {
                limit,
                bytes,
                budget: ReadBudget::default(),
            };
            let found = fitting(sizes.collect(), bound).unwrap();
            assert_eq!((found.keys.len(), found.has_more), (expected, more));
        }
    }

    #[test]
    fn full_budget_refuses_page_before_read() {
        struct Full;
        impl PageBudget for Full {
            fn take(&self, bytes: usize) -> Result<(), OverBudget> {
                assert_eq!(bytes, 9);
                Err(OverBudget {
                    reason: "full",
                    message: "wait",
                })
            }
        }
        let refused = fitting(vec![("a", 4), ("b", 5)], PageBound::new(5, &Full)).err();
        assert!(matches!(refused, Some(StoreError::OverBudget(over)) if over.reason == "full"));
    }
}
