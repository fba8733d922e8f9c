package manifest

import (
	"regexp"
	"strings"

	"github.com/fairlead/fairlead/registry/mesh"
)

// opening is a property that lets more through, or applies to more, where it is absent.
type opening struct {
	// path is the end of the path of the property, without indexes.
	path string
	code Code
	// so says what its absence means, and write what to write.
	so, write string
	// only, if it is not nil, says for which objects this is so.
	only func(*Object) bool
}

const (
	soEverything = "so this selects everything"
	soAnyRequest = "so the route takes requests without looking at it"
	soAnyName    = "so the names of the server's certificate are not compared with these"
	writeLabels  = "write the labels"
)

// openings are these properties, by kind. Those of maps, such as labels, and those in a rule of an
// AuthorizationPolicy are found in other ways; see prune.
func openings(kind mesh.Kind) []opening {
	selected := opening{"selector.matchLabels", CodeLostSelector, soEverything, writeLabels, nil}
	switch kind {
	case mesh.KindAuthorizationPolicy:
		const so = "so the policy allows requests to every workload of the namespace"
		return []opening{
			selected,
			{"spec.action", CodeLostCondition, "so the action is ALLOW", "write the action", nil},
			{"spec.selector", CodeLostSelector, so, "write the selector", (*Object).allows},
			{"spec.targetRef", CodeLostSelector, so, "write the reference", (*Object).allows},
			{"spec.targetRefs", CodeLostSelector, so, "write the references", (*Object).allows},
		}
	case mesh.KindPeerAuthentication:
		const so = "so the mode is that of the namespace or of the mesh"
		return []opening{
			selected,
			{"spec.selector", CodeLostSelector, "so the mode is that of every workload of the namespace", "write the selector", (*Object).takesPlaintext},
			{"spec.mtls", CodeLostCondition, so, "write the mode", nil},
			{"mode", CodeLostCondition, so, "write the mode", nil},
		}
	case mesh.KindRequestAuthentication:
		return []opening{
			selected,
			{"jwtRules.audiences", CodeLostCondition, "so tokens for any audience are accepted", "write the audiences", nil},
			{"jwtRules.presence", CodeLostCondition, "so requests without a token pass", "write REQUIRED or OPTIONAL", nil},
		}
	case mesh.KindTelemetry, mesh.KindProxyConfig:
		return []opening{selected}
	case mesh.KindServiceEntry:
		return []opening{
			{"workloadSelector.labels", CodeLostSelector, soEverything, writeLabels, nil},
			{"spec.subjectAltNames", CodeLostCondition, soAnyName, "write the names", nil},
		}
	case mesh.KindSidecar:
		return []opening{
			{"workloadSelector.labels", CodeLostSelector, soEverything, writeLabels, nil},
			{"spec.outboundTrafficPolicy", CodeLostCondition, "so the policy of the mesh says which hosts may be called", "write the mode", nil},
			{"ingress.tls", CodeLostCondition, "so the listener has no TLS settings of its own", "write the TLS settings", nil},
			{"ingress.tls.subjectAltNames", CodeLostCondition, "so certificates of clients with any name are accepted", "write the names", nil},
		}
	case mesh.KindGateway:
		return []opening{
			{"spec.selector", CodeLostSelector, soEverything, writeLabels, nil},
			{"servers.tls", CodeLostCondition, "so the server takes plaintext", "write the TLS settings", nil},
			{"servers.tls.mode", CodeLostCondition, "so the mode is PASSTHROUGH", "write the mode", nil},
			{"servers.tls.httpsRedirect", CodeLostCondition, "so requests in plaintext are served", "write true or false", nil},
			{"servers.tls.subjectAltNames", CodeLostCondition, "so certificates of clients with any name are accepted", "write the names", nil},
		}
	case mesh.KindDestinationRule:
		const plain = "so requests are sent in plaintext, unless the mesh uses mTLS by itself"
		return []opening{
			{"workloadSelector.matchLabels", CodeLostSelector, soEverything, writeLabels, nil},
			{"subsets.labels", CodeLostSelector, soEverything, writeLabels, nil},
			{"trafficPolicy.tls", CodeLostCondition, plain, "write the TLS settings", nil},
			{"portLevelSettings.tls", CodeLostCondition, plain, "write the TLS settings", nil},
			{"tls.mode", CodeLostCondition, "so the mode is DISABLE and requests are sent in plaintext", "write the mode", nil},
			{"tls.subjectAltNames", CodeLostCondition, soAnyName, "write the names", nil},
		}
	case mesh.KindVirtualService:
		var out []opening
		for _, name := range []string{
			"uri", "scheme", "method", "authority", "headers", "withoutHeaders", "queryParams", "port", "gateways",
			"sourceLabels", "sourceNamespace", "destinationSubnets",
		} {
			out = append(out, opening{"match." + name, CodeLostSelector, soAnyRequest, "write the condition", nil})
		}
		return out
	default:
		return nil
	}
}

var indexes = regexp.MustCompile(`\[[^\]]*\]`)

// openingAt finds what the absence of a property of the kind opens; nil if it opens nothing.
func openingAt(kind mesh.Kind, path string) *opening {
	path = indexes.ReplaceAllString(path, "")
	for _, o := range openings(kind) {
		if path == o.path || strings.HasSuffix(path, "."+o.path) {
			return &o
		}
	}
	return nil
}

// takesPlaintext reports whether the mode of a PeerAuthentication takes plaintext.
func (o *Object) takesPlaintext() bool {
	mode := o.root.Get("spec").Get("mtls").Get("mode")
	return mode != nil && (mode.Text == "PERMISSIVE" || mode.Text == "DISABLE")
}
