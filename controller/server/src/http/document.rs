//! The OpenAPI document: what the routes say of themselves, and what holds for all of them. Pure.

use berth_wire::problem::{PROBLEM_JSON, ProblemType};
use utoipa::{
    OpenApi,
    openapi::{
        Content, Ref, RefOr, Response,
        path::{Operation, PathItem},
        security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
    },
};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Berth",
        description = "Durable sessions of coding agents. Errors are problem+json (RFC 9457) with stable types, listed in docs/problems.md.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    components(schemas(berth_wire::event::SessionEventSchema, berth_wire::problem::Problem)),
    security(("bearer" = []))
)]
struct Base;

/// Problems that every route may answer with: no or a wrong token, a foreign host or origin, a request that came too
/// slowly, a defect, a stored value that is damaged, and a database that cannot be used.
const EVERYWHERE: [ProblemType; 6] = [
    ProblemType::Unauthorized,
    ProblemType::ForbiddenOrigin,
    ProblemType::RequestTimeout,
    ProblemType::Internal,
    ProblemType::StateUnreadable,
    ProblemType::StorageUnavailable,
];

/// One document of these parts.
pub(super) fn of(parts: impl IntoIterator<Item = utoipa::openapi::OpenApi>) -> utoipa::openapi::OpenApi {
    let mut document = Base::openapi();
    let scheme = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
    document.components.get_or_insert_default().add_security_scheme("bearer", scheme);
    for part in parts {
        document.merge(part);
    }
    document.paths.paths.values_mut().flat_map(operations).for_each(complete);
    document
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch].into_iter().flatten()
}

/// Adds what holds everywhere, and says of each problem which types it may have.
fn complete(operation: &mut Operation) {
    let responses = &mut operation.responses.responses;
    let has_parameters = operation.parameters.as_ref().is_some_and(|parameters| !parameters.is_empty());
    let parameters = has_parameters.then_some(ProblemType::InvalidParameter);
    for kind in EVERYWHERE.into_iter().chain(parameters) {
        responses.entry(kind.status().to_string()).or_insert_with(|| RefOr::T(Response::new("")));
    }
    for (status, response) in responses.iter_mut() {
        let Some(status) = status.parse::<u16>().ok().filter(|status| *status >= 400) else { continue };
        let RefOr::T(response) = response else { continue };
        let kinds =
            ProblemType::ALL.into_iter().filter(|kind| kind.status() == status && kind.is_of_server());
        let names: Vec<_> = kinds.map(|kind| format!("`{}`", kind.slug())).collect();
        response.description = format!("Problem: {}", names.join(", "));
        let schema = Ref::from_schema_name("Problem");
        response.content =
            [(PROBLEM_JSON.to_owned(), RefOr::T(Content::new(Some(schema))))].into_iter().collect();
    }
}

#[cfg(test)]
mod tests {
    use super::super::openapi;
    use super::*;

    #[test]
    fn every_operation_names_its_problems() {
        let mut document = openapi();
        let mut count = 0;
        for operation in document.paths.paths.values_mut().flat_map(operations) {
            count += 1;
            let responses = &operation.responses.responses;
            for status in ["401", "403", "408", "500", "503"] {
                assert!(responses.contains_key(status), "{:?} {status}", operation.operation_id);
            }
            for (status, response) in responses {
                let RefOr::T(response) = response else { panic!("{status}") };
                assert!(!response.description.ends_with(": "), "{:?} {status}", operation.operation_id);
            }
        }
        assert!(count > 20, "{count}");
    }
}
