package proxyconfig

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// extensionRows has one row: the filters with the name of an extension have its configuration.
func extensionRows(e *Entry, x *corev3.TypedExtensionConfig) [][]string {
	return [][]string{{x.GetName(), string(x.GetTypedConfig().MessageName()), from(e)}}
}
