//! EndpointSlices by the service that they belong to.

use ambit_api::discovery::v1::EndpointSlice;
use ambit_names::label;
use std::collections::HashMap;

/// Slices of all services.
#[derive(Debug, Default)]
pub(crate) struct ByService<'a>(HashMap<(&'a str, &'a str), Vec<&'a EndpointSlice>>);

impl<'a> ByService<'a> {
    /// Sorts slices by their service. Those that belong to none are left out.
    pub(crate) fn new(slices: impl IntoIterator<Item = &'a EndpointSlice>) -> Self {
        let mut all = Self::default();
        for slice in slices {
            let service = slice.metadata.labels.as_ref().and_then(|labels| labels.get(label::SERVICE_NAME));
            if let (Some(namespace), Some(service)) = (slice.metadata.namespace.as_deref(), service) {
                all.0.entry((namespace, service)).or_default().push(slice);
            }
        }
        all
    }

    /// Slices of the service `name` in `namespace`.
    pub(crate) fn of(&self, namespace: &'a str, name: &'a str) -> &[&'a EndpointSlice] {
        self.0.get(&(namespace, name)).map_or(&[], Vec::as_slice)
    }
}
