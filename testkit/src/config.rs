//! The opencode configuration that makes the scripted model its only provider. Pure.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::wire::ModelWire;

/// Configuration for the OpenAI wire, for `opencode.json` or `OPENCODE_CONFIG_CONTENT`.
///
/// Models are `scripted/m`, `scripted/eyes`, which takes images, and `scripted/small` for titles. Nothing in it makes opencode reach out of the machine.
pub fn provider_config(address: SocketAddr) -> Value {
    provider_config_for(ModelWire::OpenAi, address)
}

/// The same for a wire of choice; the models' names are the same on both.
pub fn provider_config_for(wire: ModelWire, address: SocketAddr) -> Value {
    let package = match wire {
        ModelWire::OpenAi => "@ai-sdk/openai-compatible",
        ModelWire::Anthropic => "@ai-sdk/anthropic",
    };
    let images = json!({"input": ["text", "image"], "output": ["text"]});
    let limit = json!({"context": 200_000, "output": 8_192});
    json!({
        "$schema": "https://opencode.ai/config.json",
        "autoupdate": false,
        "share": "disabled",
        "snapshot": false,
        "lsp": false,
        "formatter": false,
        "enabled_providers": ["scripted"],
        "model": "scripted/m",
        "small_model": "scripted/small",
        "provider": {
            "scripted": {
                "npm": package,
                "name": "Scripted model",
                "options": {"baseURL": format!("http://{address}/v1"), "apiKey": "not-a-secret"},
                "models": {
                    "m": {"name": "Scripted", "tool_call": true, "reasoning": true, "limit": limit},
                    "eyes": {"name": "Scripted, with images", "attachment": true, "modalities": images, "limit": limit},
                    "small": {"name": "Scripted, for titles", "limit": limit},
                },
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wires_differ_by_their_package_only() {
        let address = "127.0.0.1:9100".parse().unwrap();
        let mut openai = provider_config(address);
        let anthropic = provider_config_for(ModelWire::Anthropic, address);
        assert_eq!(anthropic["provider"]["scripted"]["npm"], "@ai-sdk/anthropic");
        assert_eq!(anthropic["provider"]["scripted"]["options"]["baseURL"], "http://127.0.0.1:9100/v1");
        openai["provider"]["scripted"]["npm"] = "@ai-sdk/anthropic".into();
        assert_eq!(openai, anthropic);
    }
}
