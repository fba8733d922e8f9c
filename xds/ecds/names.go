package ecds

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers of envoy.config.listener.v3.Listener, of FilterChain and Filter in it, of
// google.protobuf.Any, and of envoy.extensions.filters.network.http_connection_manager.v3's
// HttpConnectionManager and HttpFilter.
const (
	listenerFilterChains       = 3
	listenerDefaultFilterChain = 25
	filterChainFilters         = 3
	filterTypedConfig          = 4
	anyTypeURL                 = 1
	anyValue                   = 2
	hcmHTTPFilters             = 5
	httpFilterName             = 1
	httpFilterConfigDiscovery  = 5
)

const hcmType = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"

// Names are the extensions that a listener names, given its encoding; sorted. The name of
// an HTTP filter with config_discovery is that of its extension. What cannot be read names
// nothing: Envoy rejects it, too.
func Names(listener []byte) []string {
	var out []string
	fields(listener, func(n protowire.Number, chain []byte) {
		if n != listenerFilterChains && n != listenerDefaultFilterChain {
			return
		}
		fields(chain, func(n protowire.Number, filter []byte) {
			if n != filterChainFilters {
				return
			}
			fields(filter, func(n protowire.Number, config []byte) {
				if n == filterTypedConfig {
					out = appendHTTPFilters(out, config)
				}
			})
		})
	})
	slices.Sort(out)
	return slices.Compact(out)
}

// appendHTTPFilters appends the extensions that a network filter names, given its Any.
func appendHTTPFilters(out []string, config []byte) []string {
	var value []byte
	isHCM := false
	fields(config, func(n protowire.Number, v []byte) {
		isHCM = isHCM || n == anyTypeURL && string(v) == hcmType
		if n == anyValue {
			value = v
		}
	})
	if !isHCM {
		return out
	}
	fields(value, func(n protowire.Number, filter []byte) {
		if n != hcmHTTPFilters {
			return
		}
		var name []byte
		discovered := false
		fields(filter, func(n protowire.Number, v []byte) {
			if n == httpFilterName {
				name = v
			}
			discovered = discovered || n == httpFilterConfigDiscovery
		})
		if discovered {
			out = append(out, string(name))
		}
	})
	return out
}

// fields visits the length-delimited fields of a message, up to the first that is malformed.
func fields(b []byte, visit func(n protowire.Number, value []byte)) {
	for len(b) > 0 {
		n, typ, tag := protowire.ConsumeTag(b)
		if tag < 0 {
			return
		}
		size := protowire.ConsumeFieldValue(n, typ, b[tag:])
		if size < 0 {
			return
		}
		if typ == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(b[tag:])
			visit(n, value)
		}
		b = b[tag+size:]
	}
}
