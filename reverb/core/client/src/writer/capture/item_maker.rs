// SPDX-License-Identifier: Apache-2.0
//! Item maker: makes the items of one writer, and checks them against their tables.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use reverb_base::{Error, Result};
use reverb_data::column_names::ColumnNames;
use reverb_data::{DType, ItemPriority};
use smallvec::SmallVec;

use super::cell::{Cell, CellRef};
use super::column_orders::{ColumnOrder, ColumnOrders, Matching};
use super::item::{ColumnRefs, PendingItem, no_steps};
use super::item_template::ItemTemplate;
use super::signatures::unknown_table;
use crate::session::{Session, Signatures};

/// Number of templates that an item is compared with.
const MAX_TEMPLATES: usize = 8;

/// Makes the items of one writer.
#[derive(Debug)]
pub struct ItemMaker {
    signatures: OnceLock<Arc<Signatures>>,
    orders: ColumnOrders,
    session: Arc<Session>,
    /// Names of the tables used so far, shared by all items.
    tables: Mutex<Vec<Arc<str>>>,
    /// Tables whose items have columns of `T + 1` and `T` rows, as was logged.
    warned_of_rows: Mutex<Vec<Arc<str>>>,
}

impl ItemMaker {
    /// With `signatures`, every item is checked against its table's signature. `matching` is the
    /// rule for `order_of`.
    pub(crate) fn new(
        session: &Arc<Session>,
        signatures: Option<Arc<Signatures>>,
        matching: Matching,
    ) -> Self {
        Self {
            signatures: signatures.map_or_else(OnceLock::new, OnceLock::from),
            orders: ColumnOrders::new(matching),
            session: Arc::clone(session),
            tables: Mutex::default(),
            warned_of_rows: Mutex::default(),
        }
    }

    /// Sets the signatures for the check, unless they are set.
    pub(crate) fn check_against(&self, signatures: Arc<Signatures>) {
        let _ = self.signatures.set(signatures);
    }

    /// True if items are checked against signatures.
    pub(crate) fn has_signatures(&self) -> bool {
        self.signatures.get().is_some()
    }

    /// Order of the columns with these names in the table's signature; `None`: unchanged.
    ///
    /// # Errors
    ///
    /// `SignatureMismatch` for other names, if the writer matches columns by name.
    pub fn order_of(&self, table: &str, names: &Arc<ColumnNames>) -> Result<Option<ColumnOrder>> {
        let Some(signatures) = self.signatures.get() else { return Ok(None) };
        let signature = signatures.get(table).and_then(Option::as_ref);
        self.orders.of(table, names, signature)
    }

    /// Dtype of a column in the table's signature; `None` if there is none.
    pub fn signature_dtype(&self, table: &str, column: usize) -> Option<DType> {
        let signature = self.signatures.get()?.get(table)?.as_ref()?;
        signature.0.get(column).map(|spec| spec.dtype)
    }

    /// Makes an item over these cells, with a flag for each squeezed column.
    ///
    /// # Errors
    ///
    /// Those of `ItemsOfTable::make`.
    pub(crate) fn item<'a>(
        &self,
        table: &str,
        priority: impl Into<ItemPriority>,
        columns: &[ColumnRefs<'a>],
    ) -> Result<PendingItem> {
        let cells =
            |column: &ColumnRefs<'a>| (column.cells.iter().map(CellRef::as_cell), column.squeeze);
        self.of_table(table).make(priority.into(), columns.iter().map(cells))
    }

    /// Makes several items of one table.
    pub(crate) fn of_table(&self, table: &str) -> ItemsOfTable<'_> {
        ItemsOfTable { maker: self, table: self.table_name(table), templates: SmallVec::new() }
    }

    /// Checks items of a template against the signature of their table.
    fn check(&self, template: &ItemTemplate) -> Result<()> {
        if let Some(columns) = template.one_row_more() {
            self.warn_of_rows(template.table(), columns);
        }
        let Some(signatures) = self.signatures.get() else { return Ok(()) };
        match signatures.get(&**template.table()) {
            None => self.unknown_table(template.table(), signatures),
            Some(Some(signature)) => template.check_signature(signature),
            Some(None) => Ok(()),
        }
    }

    fn table_name(&self, name: &str) -> Arc<str> {
        let mut tables = self.tables.lock();
        if let Some(known) = tables.iter().find(|known| ***known == *name) {
            return Arc::clone(known);
        }
        tables.push(Arc::from(name));
        Arc::clone(&tables[tables.len() - 1])
    }

    /// Logs, once for each table, that rows of the columns do not belong together.
    #[cold]
    fn warn_of_rows(&self, table: &Arc<str>, [longest, shortest]: [(usize, usize); 2]) {
        let mut warned = self.warned_of_rows.lock();
        if warned.iter().any(|known| known == table) {
            return;
        }
        warned.push(Arc::clone(table));
        let (long, rows) = longest;
        let (short, fewer) = shortest;
        tracing::warn!(
            table = %table,
            "items have {rows} rows in column {long} and {fewer} in column {short}: row i of one is \
             not of the same step as row i of the other in windows, steps and datasets, which \
             refuse such items. Write as many rows in each column, or ignore this if whole items \
             are sampled."
        );
    }

    pub(in crate::writer) fn unknown_table(
        &self,
        table: &str,
        signatures: &Signatures,
    ) -> Result<()> {
        unknown_table(table, &self.session, signatures)
    }
}

/// Makes items of one table.
///
/// Items of one call mostly have a template in common. Templates are made anew for each call,
/// because two threads that count references to the same one slow each other down.
pub(crate) struct ItemsOfTable<'a> {
    maker: &'a ItemMaker,
    table: Arc<str>,
    templates: SmallVec<[Arc<ItemTemplate>; 1]>,
}

impl ItemsOfTable<'_> {
    /// Makes an item over the cells of these columns, some of them squeezed.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a NaN priority, no columns, an empty column, an expired cell, cells of
    /// different dtype or shape in one column, or a squeezed column without exactly one cell;
    /// `TableNotFound`, and `SignatureMismatch` for an item that does not fit its table.
    pub(crate) fn make<'c, C>(
        &mut self,
        priority: ItemPriority,
        columns: impl Iterator<Item = (C, bool)> + Clone,
    ) -> Result<PendingItem>
    where
        C: ExactSizeIterator<Item = Cell<'c>> + Clone,
    {
        if columns.clone().all(|(cells, _)| cells.len() == 0) {
            return Err(no_steps());
        }
        check_priority(priority)?;
        let (template, cells) = ItemTemplate::of(Arc::clone(&self.table), columns)?;
        self.maker.check(&template)?;
        if self.templates.len() < MAX_TEMPLATES && cells.are_searched() {
            self.templates.push(Arc::clone(&template));
        }
        Ok(PendingItem::new(priority, template, cells))
    }

    /// Makes an item of the template of an earlier one, if it has one. See `ItemTemplate::find`.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a NaN priority.
    pub(crate) fn make_alike<'c, C>(
        &self,
        priority: ItemPriority,
        columns: &(impl Iterator<Item = (usize, C, bool)> + Clone),
    ) -> Result<Option<PendingItem>>
    where
        C: ExactSizeIterator<Item = Cell<'c>>,
    {
        check_priority(priority)?;
        Ok(self.templates.iter().find_map(|template| {
            let cells = template.find(columns.clone())?;
            Some(PendingItem::new(priority, Arc::clone(template), cells))
        }))
    }
}

fn check_priority(priority: ItemPriority) -> Result<()> {
    if priority.is_valid() {
        return Ok(());
    }
    Err(Error::invalid_argument("priority must not be NaN"))
}
