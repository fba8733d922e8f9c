package envoy

import (
	"maps"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	networking "istio.io/api/networking/v1alpha3"
)

// headerOperations are the changes of headers in a route. Istio treats the authority as a
// header, Envoy does not.
type headerOperations struct {
	requestAdd, responseAdd       []*corev3.HeaderValueOption
	requestRemove, responseRemove []string
	authority                     string
}

func headerOps(h *networking.Headers) headerOperations {
	req, resp := h.GetRequest(), h.GetResponse()
	set := corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD
	add := corev3.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD
	out := headerOperations{
		requestAdd:     slices.Concat(headerValues(req.GetSet(), set), headerValues(req.GetAdd(), add)),
		responseAdd:    slices.Concat(headerValues(resp.GetSet(), set), headerValues(resp.GetAdd(), add)),
		requestRemove:  regularHeaders(req.GetRemove()),
		responseRemove: regularHeaders(resp.GetRemove()),
		authority:      authorityIn(req.GetSet()),
	}
	if out.authority == "" {
		out.authority = authorityIn(req.GetAdd())
	}
	return out
}

func headerValues(m map[string]string, how corev3.HeaderValueOption_HeaderAppendAction) []*corev3.HeaderValueOption {
	var out []*corev3.HeaderValueOption
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if !isPseudoHeader(k) {
			out = append(out, &corev3.HeaderValueOption{
				Header:       &corev3.HeaderValue{Key: k, Value: m[k]},
				AppendAction: how,
			})
		}
	}
	return out
}

// isPseudoHeader reports whether Envoy forbids to set or remove a header.
func isPseudoHeader(key string) bool {
	return strings.HasPrefix(key, ":") || strings.EqualFold(key, "host")
}

func authorityIn(m map[string]string) string {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if strings.EqualFold(k, ":authority") || strings.EqualFold(k, "host") {
			return m[k]
		}
	}
	return ""
}

func regularHeaders(keys []string) []string {
	var out []string
	for _, k := range keys {
		if !isPseudoHeader(k) {
			out = append(out, k)
		}
	}
	return out
}
