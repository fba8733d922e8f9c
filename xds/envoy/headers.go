package envoy

import (
	"maps"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	networking "istio.io/api/networking/v1alpha3"
)

// headerOperations are what a rule does to headers. The authority is a header
// to Istio's users and something else to Envoy.
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
		requestRemove:  ordinary(req.GetRemove()),
		responseRemove: ordinary(resp.GetRemove()),
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
		if !special(k) {
			out = append(out, &corev3.HeaderValueOption{
				Header:       &corev3.HeaderValue{Key: k, Value: m[k]},
				AppendAction: how,
			})
		}
	}
	return out
}

// special headers are those that Envoy does not let anybody set or remove.
func special(key string) bool { return strings.HasPrefix(key, ":") || strings.EqualFold(key, "host") }

func authorityIn(m map[string]string) string {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if strings.EqualFold(k, ":authority") || strings.EqualFold(k, "host") {
			return m[k]
		}
	}
	return ""
}

func ordinary(keys []string) []string {
	var out []string
	for _, k := range keys {
		if !special(k) {
			out = append(out, k)
		}
	}
	return out
}
