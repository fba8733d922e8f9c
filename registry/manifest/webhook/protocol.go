package webhook

import "strings"

// protocolNames are the names that a port's protocol may have; case does not count.
//
//nolint:gochecknoglobals // a read-only table
var protocolNames = []string{
	"HTTP", "HTTPS", "HTTP2", "GRPC", "GRPC-Web", "TCP", "TLS", "UDP", "HTTP_PROXY", "Mongo", "Redis", "MySQL",
}

// parseProtocol returns the name in capitals, or "" for one that Istio does not know.
func parseProtocol(s string) string {
	for _, p := range protocolNames {
		if strings.EqualFold(p, s) {
			return strings.ToUpper(p)
		}
	}
	return ""
}

func isHTTP(protocol string) bool {
	switch protocol {
	case "HTTP", "HTTP2", "HTTP_PROXY", "GRPC", "GRPC-WEB":
		return true
	}
	return false
}

func isTLS(protocol string) bool { return protocol == "HTTPS" || protocol == "TLS" }

// unknownProtocol reports a protocol that has no meaning.
func (c cursor) unknownProtocol(s string) {
	c.wrong("unknown protocol %q%s; use one of %s", s, near(s, protocolNames...), strings.Join(protocolNames, ", "))
}

// protocol judges a protocol that may be left out, to be detected.
func (c cursor) protocol(s string) {
	if s != "" && parseProtocol(s) == "" {
		c.unknownProtocol(s)
	}
}
