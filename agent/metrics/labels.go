package metrics

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// Workload is the workload that this host runs, as Istio's metrics name it. Empty fields are
// unknown; an empty CanonicalRevision is "latest".
type Workload struct {
	Name, Namespace, App, Version    string
	CanonicalName, CanonicalRevision string
	Cluster                          string
	// Principal is the SPIFFE ID of the workload.
	Principal string
}

// reporter is which side of a request Envoy is on, the value of the label of that name.
type reporter string

const (
	source      reporter = "source"
	destination reporter = "destination"
)

// Labels of what Envoy counts, and of what it sends about connections.
const (
	inReporter      = "reporter"
	inPeer          = "peer"
	inPeerPrincipal = "peer_principal"
	inService       = "service"
	inCode          = "response_code"
	inFlags         = "response_flags"
	inGRPC          = "grpc_response_status"
	// inRemoved has the names of labels to leave out, separated by commas.
	inRemoved = "fairlead_removed"
)

// Values of Istio's metrics.
const (
	unknown = "unknown"
	latest  = "latest"
)

// maxValue is the longest value of a label in bytes. A SPIFFE ID with names of the greatest
// length has fewer. Longer values become unknown: they would be cut to names that others have.
const maxValue = 1024

// observed is what Envoy says of the requests that a series counts.
type observed struct {
	reporter          reporter
	peer, principal   string
	service           string
	code, flags, grpc string
	tcp               bool
	removed           string
	further           []label // of Telemetry's tag overrides
}

// observedOf reads the labels of a series; false if its reporter is none.
func observedOf(labels []label) (observed, bool) {
	var o observed
	for _, l := range labels {
		switch l.name {
		case inReporter:
			o.reporter = reporter(l.value)
		case inPeer:
			o.peer = l.value
		case inPeerPrincipal:
			o.principal = l.value
		case inService:
			o.service = l.value
		case inCode:
			o.code = l.value
		case inFlags:
			o.flags = l.value
		case inGRPC:
			o.grpc = l.value
		case inRemoved:
			o.removed = l.value
		default:
			o.further = append(o.further, l)
		}
	}
	return o, o.reporter == source || o.reporter == destination
}

// peer is what is known of the other workload.
type peer struct {
	workload, namespace, canonical, revision, cluster string
}

// parsePeer reads "name;namespace;canonical name;canonical revision;cluster". With another
// number of fields nothing is known: a name with a semicolon must not become another field.
func parsePeer(s string) peer {
	f := strings.Split(s, ";")
	if len(f) != 5 {
		return peer{}
	}
	return peer{f[0], f[1], f[2], f[3], f[4]}
}

// peerOfSubject is the peer in the subject of its certificate, as Envoy writes it (RFC 2253). Any
// other form than that of the authority of the mesh, OU=name,OU=revision,OU=service,O=Fairlead,
// says nothing.
func peerOfSubject(subject string) peer {
	const units = 3
	parts := strings.Split(subject, ",")
	if len(parts) != units+1 || parts[units] != "O=Fairlead" {
		return peer{}
	}
	for i := range units {
		unit, ok := strings.CutPrefix(parts[i], "OU=")
		if !ok || !isUnit(unit) {
			return peer{}
		}
		parts[i] = unit
	}
	return peer{workload: parts[0], revision: parts[1], canonical: parts[2]}
}

// isUnit reports whether the authority writes s into a subject.
func isUnit(s string) bool {
	const most = 64
	return s != "" && len(s) <= most && !strings.ContainsFunc(s, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-'
	})
}

// principal is a SPIFFE ID that may be a label; empty if it is none. Several identities of one
// certificate, which Envoy joins by commas, are none of the mesh's.
func principal(s string) string {
	if !strings.HasPrefix(s, "spiffe://") || strings.ContainsAny(s, ",\"\\\n ") {
		return ""
	}
	return s
}

// namespaceOf is the namespace in a SPIFFE ID of Istio's form; empty if it has another form.
func namespaceOf(principal string) string {
	path, ok := strings.CutPrefix(principal, "spiffe://")
	if !ok {
		return ""
	}
	f := strings.Split(path, "/")
	if len(f) != 5 || f[1] != "ns" || f[3] != "sa" {
		return ""
	}
	return f[2]
}

// complete are the labels of Istio's metrics, in its order, and further ones by name. Where
// Istio takes a value from a request's headers, it is unknown here.
//
// The source of the meaning is Istio's filter, istio_stats.cc: populatePeerInfo.
func (o *observed) complete(own Workload) []label {
	id := principal(o.principal)
	p := parsePeer(o.peer)
	if o.reporter == destination {
		if p = peerOfSubject(o.peer); p.workload != "" {
			p.cluster = own.Cluster // one authority is that of one cluster
		}
	}
	if ns := namespaceOf(id); ns != "" {
		p.namespace = ns
	}
	host, name, _ := parseService(o.service)
	self := side{
		peer:      peer{own.Name, own.Namespace, own.CanonicalName, own.CanonicalRevision, own.Cluster},
		principal: own.Principal, app: own.App, version: own.Version,
	}
	if o.principal == "" {
		self.principal = "" // in plaintext nobody saw it
	}
	from, to := self, side{peer: p, principal: id}
	security, namespace := unknown, p.namespace
	if o.reporter == destination {
		from, to = to, from
		security, namespace = "none", own.Namespace
		if o.principal != "" {
			security = "mutual_tls"
		}
		host, name = orElse(host, own.CanonicalName), orElse(name, own.CanonicalName)
	}
	protocol := "http"
	switch {
	case o.tcp:
		protocol = "tcp"
	case o.grpc != "":
		protocol = "grpc"
	}
	out := []label{
		{"reporter", string(o.reporter)},
		{"source_workload", from.workload},
		{"source_canonical_service", from.canonical},
		{"source_canonical_revision", orElse(from.revision, latest)},
		{"source_workload_namespace", from.namespace},
		{"source_principal", from.principal},
		{"source_app", from.app},
		{"source_version", from.version},
		{"source_cluster", from.cluster},
		{"destination_workload", to.workload},
		{"destination_workload_namespace", to.namespace},
		{"destination_principal", to.principal},
		{"destination_app", to.app},
		{"destination_version", to.version},
		{"destination_service", host},
		{"destination_canonical_service", to.canonical},
		{"destination_canonical_revision", orElse(to.revision, latest)},
		{"destination_service_name", name},
		{"destination_service_namespace", namespace},
		{"destination_cluster", to.cluster},
		{"request_protocol", protocol},
	}
	if !o.tcp {
		out = append(out, label{"response_code", number(o.code, 999)}, label{"grpc_response_status", number(o.grpc, 16)})
	}
	out = append(out, label{"response_flags", orElse(sortedFlags(o.flags), "-")}, label{"connection_security_policy", security})
	return o.override(out)
}

// flagNames are the short names of Envoy's response flags, in the order of its documentation.
func flagNames() []string {
	return []string{
		"LH", "UH", "UT", "LR", "UR", "UF", "UC", "UO", "NR", "DI", "FI", "RL", "UAEX", "RLSE", "DC", "URX", "SI", "IH", "DPE", "UMSDR", "RFCF", "NFCF", "DT", "UPE", "NC", "OM",
		"DF", "DR",
	}
}

// sortedFlags are flags in one order. Envoys write them in the order in which they were set, which
// differs between releases, and would make several series of one.
func sortedFlags(flags string) string {
	if !strings.Contains(flags, ",") {
		return flags
	}
	list, names := strings.Split(flags, ","), flagNames()
	slices.SortStableFunc(list, func(a, b string) int {
		return cmp.Compare(uint(slices.Index(names, a)), uint(slices.Index(names, b))) // one of a later release is last
	})
	return strings.Join(list, ",")
}

// side is one end of a request.
type side struct {
	peer
	principal, app, version string
}

// override cleans values, replaces and adds the further labels, and leaves out what is to be
// removed.
func (o *observed) override(out []label) []label {
	more := slices.Clone(o.further)
	slices.SortStableFunc(more, func(a, b label) int { return strings.Compare(a.name, b.name) })
	for _, l := range more {
		if nameLen([]byte(l.name), false) != len(l.name) || l.name == "" || strings.HasPrefix(l.name, "__") || l.name == "le" {
			continue
		}
		if i := slices.IndexFunc(out, func(have label) bool { return have.name == l.name }); i >= 0 {
			out[i].value = l.value
		} else {
			out = append(out, l)
		}
	}
	for i := range out {
		out[i].value = clean(out[i].name, out[i].value)
	}
	if o.removed == "" {
		return out
	}
	gone := strings.Split(o.removed, ",")
	return slices.DeleteFunc(out, func(l label) bool { return slices.Contains(gone, l.name) })
}

// parseService reads "host;name;namespace".
func parseService(s string) (host, name, namespace string) {
	f := strings.Split(s, ";")
	if len(f) != 3 {
		return "", "", ""
	}
	return f[0], f[1], f[2]
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// clean is a value that fits into a label.
func clean(name, s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	switch {
	case len(s) > maxValue:
		return unknown
	case s == "" && name != inGRPC: // as in Istio, empty without gRPC
		return unknown
	}
	return s
}

// number is a number up to most, as it is; else it is unknown: an application that answers with
// numbers of its own must not make series without bound.
func number(s string, most uint64) string {
	if s == "" {
		return ""
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n > most || len(s) > 1 && s[0] == '0' {
		return unknown
	}
	return s
}
