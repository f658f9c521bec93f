//! An object of the API server, undecoded: one odd object must not cost the list that it stands in.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::{ApiResource, DynamicResourceScope};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::model::{Kind, Object, Origin, Problem};

/// The JSON of an object, and the little of its metadata that watching needs.
#[derive(Clone, Debug)]
pub(super) struct Raw {
    meta: ObjectMeta,
    json: Value,
}

impl Raw {
    /// The object for the model.
    pub(super) fn identify(self, kind: Kind) -> Result<Object, Problem> {
        Object::identify(kind, self.json.into(), Origin::default())
    }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = Value::deserialize(deserializer)?;
        let text = |key: &str| json.pointer(&format!("/metadata/{key}")).and_then(Value::as_str).map(str::to_owned);
        let meta = ObjectMeta {
            name: text("name"),
            namespace: text("namespace"),
            resource_version: text("resourceVersion"),
            ..ObjectMeta::default()
        };
        Ok(Self { meta, json })
    }
}

impl Resource for Raw {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        (&*resource.kind).into()
    }

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        (&*resource.group).into()
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        (&*resource.version).into()
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        (&*resource.plural).into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
    }
}
