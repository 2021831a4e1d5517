//! Finding one of many thousand resources by its name.

use std::collections::HashMap;

/// Where each name stands in a list; the first of equal ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index(HashMap<String, usize>);

impl Index {
    pub(crate) fn of<'a>(names: impl IntoIterator<Item = &'a str>) -> Index {
        let mut index = Index::default();
        names.into_iter().enumerate().for_each(|(at, name)| index.add(name, at));
        index
    }

    pub(crate) fn add(&mut self, name: &str, at: usize) {
        if !self.0.contains_key(name) {
            self.0.insert(name.to_owned(), at);
        }
    }

    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.0.get(name).copied()
    }
}
