package manifest

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/fairlead/fairlead/registry/manifest/tree"
)

// Some texts of a manifest are formats to an Envoy: it puts what it knows in the
// place of %COMMAND%. Some commands read what is the host's and no tenant's, such
// as %ENVIRONMENT(NAME)% and %FILE_CONTENT(PATH)%, and what an Envoy does not know
// makes it refuse all of the resource. So only listed commands are in force: those
// that each Envoy from 1.36 on takes, and that tell of the request, the connection
// or the configuration. Languages that read anything (CEL, LUA) are not listed.

// formats are the fields that are formats, by their full names. A test finds them:
// it builds Envoy's configuration of every field there is.
//
//nolint:gochecknoglobals // a read-only table
var formats = map[protoreflect.FullName]bool{
	"istio.networking.v1alpha3.Headers.HeaderOperations.add": true,
	"istio.networking.v1alpha3.Headers.HeaderOperations.set": true,
}

// IsFormat reports whether the values of a field of a manifest are formats to an
// Envoy.
func IsFormat(field protoreflect.FullName) bool { return formats[field] }

// formatArgument is what stands between the parentheses of a command.
type formatArgument struct {
	needed bool
	form   *regexp.Regexp // or nil: nothing may stand there
	length bool           // :N may follow, the most characters that are used
	sample string
}

// The arguments, in the words of Envoy's documentation.
//
//nolint:gochecknoglobals // read-only tables
var (
	noArgument     = formatArgument{}
	headerArgument = formatArgument{true, regexp.MustCompile(`^:?[A-Za-z0-9_.-]+(\?:?[A-Za-z0-9_.-]+)?$`), true, "X-REQUEST-ID?:PATH"}
	nameArgument   = formatArgument{true, regexp.MustCompile(`^[A-Za-z0-9_.-]+$`), true, "name"}
	stateArgument  = formatArgument{true, regexp.MustCompile(`^[A-Za-z0-9_.-]+(:(PLAIN|TYPED|FIELD:[A-Za-z0-9_.-]+))?$`), true, "key:PLAIN"}
	// Time is that of strftime, with %3f for milliseconds.
	timeArgument = formatArgument{
		false, regexp.MustCompile(`^([A-Za-z0-9 :./,_+-]|%[aAbBdeFHIjmMpsSTyYzZ]|%[1-9]?f)+$`), false, "%Y-%m-%dT%H:%M:%S.%3f%z",
	}
	// Metadata is namespace:key:…, or a list in quotes, as Istio has it.
	metadataArgument = formatArgument{
		true, regexp.MustCompile(`^([A-Za-z0-9_./-]+(:[A-Za-z0-9_./-]+)*|\["[A-Za-z0-9_./-]+"(, *"[A-Za-z0-9_./-]+")*\])$`), false, `["namespace", "key"]`,
	}
)

// formatCommands are the commands that are in force.
//
//nolint:gochecknoglobals // a read-only table, made once
var formatCommands = sync.OnceValue(func() map[string]formatArgument {
	out := map[string]formatArgument{
		"REQ": headerArgument, "RESP": headerArgument, "TRAILER": headerArgument,
		"QUERY_PARAM": nameArgument, "FILTER_STATE": stateArgument, "UPSTREAM_FILTER_STATE": stateArgument,
		"DYNAMIC_METADATA": metadataArgument, "CLUSTER_METADATA": metadataArgument, "UPSTREAM_METADATA": metadataArgument,
		"METADATA":          {true, regexp.MustCompile(`^(CLUSTER|ROUTE|UPSTREAM_HOST|LISTENER|VIRTUAL_HOST|DYNAMIC)(:[A-Za-z0-9_./-]+)+$`), true, "CLUSTER:namespace:key"},
		"PER_REQUEST_STATE": {true, regexp.MustCompile(`^[A-Za-z0-9_.-]+$`), false, "key"},
		"PATH":              {false, regexp.MustCompile(`^(WQ|NQ)(:(ORIG|PATH|ORIG_OR_PATH))?$`), true, "NQ:ORIG"},
		"GRPC_STATUS":       {false, regexp.MustCompile(`^(CAMEL_STRING|SNAKE_STRING|NUMBER)$`), false, "NUMBER"},
		"COMMON_DURATION": {
			true, regexp.MustCompile(`^(D|U)S_(RX|TX|CX|HS)_(BEG|END):(D|U)S_(RX|TX|CX|HS)_(BEG|END):(ms|us|ns)$`), false, "DS_RX_BEG:US_TX_END:us",
		},
	}
	for name := range strings.FieldsSeq(`START_TIME START_TIME_LOCAL EMIT_TIME EMIT_TIME_LOCAL DOWNSTREAM_PEER_CERT_V_START
		DOWNSTREAM_PEER_CERT_V_END UPSTREAM_PEER_CERT_V_START UPSTREAM_PEER_CERT_V_END`) {
		out[name] = timeArgument
	}
	for name := range strings.FieldsSeq(plainCommands) {
		out[name] = noArgument
	}
	return out
})

// plainCommands take no argument.
const plainCommands = `
		ACCESS_LOG_TYPE BYTES_RECEIVED BYTES_RETRANSMITTED BYTES_SENT CONNECTION_ID CONNECTION_TERMINATION_DETAILS
		CUSTOM_FLAGS DOWNSTREAM_DECOMPRESSED_HEADER_BYTES_RECEIVED DOWNSTREAM_DECOMPRESSED_HEADER_BYTES_SENT
		DOWNSTREAM_DIRECT_LOCAL_ADDRESS DOWNSTREAM_DIRECT_LOCAL_ADDRESS_WITHOUT_PORT DOWNSTREAM_DIRECT_LOCAL_PORT
		DOWNSTREAM_DIRECT_REMOTE_ADDRESS DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT DOWNSTREAM_DIRECT_REMOTE_PORT
		DOWNSTREAM_HANDSHAKE_DURATION DOWNSTREAM_HEADER_BYTES_RECEIVED DOWNSTREAM_HEADER_BYTES_SENT
		DOWNSTREAM_LOCAL_ADDRESS DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT DOWNSTREAM_LOCAL_DNS_SAN
		DOWNSTREAM_LOCAL_EMAIL_SAN DOWNSTREAM_LOCAL_IP_SAN DOWNSTREAM_LOCAL_OTHERNAME_SAN DOWNSTREAM_LOCAL_PORT
		DOWNSTREAM_LOCAL_SUBJECT DOWNSTREAM_LOCAL_URI_SAN DOWNSTREAM_PEER_CERT DOWNSTREAM_PEER_CHAIN_FINGERPRINTS_1
		DOWNSTREAM_PEER_CHAIN_FINGERPRINTS_256 DOWNSTREAM_PEER_CHAIN_SERIALS DOWNSTREAM_PEER_DNS_SAN
		DOWNSTREAM_PEER_EMAIL_SAN DOWNSTREAM_PEER_FINGERPRINT_1 DOWNSTREAM_PEER_FINGERPRINT_256
		DOWNSTREAM_PEER_IP_SAN DOWNSTREAM_PEER_ISSUER DOWNSTREAM_PEER_OTHERNAME_SAN DOWNSTREAM_PEER_SERIAL
		DOWNSTREAM_PEER_SUBJECT DOWNSTREAM_PEER_URI_SAN DOWNSTREAM_REMOTE_ADDRESS
		DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT DOWNSTREAM_REMOTE_PORT DOWNSTREAM_TLS_CIPHER
		DOWNSTREAM_TLS_SESSION_ID DOWNSTREAM_TLS_VERSION DOWNSTREAM_TRANSPORT_FAILURE_REASON
		DOWNSTREAM_WIRE_BYTES_RECEIVED DOWNSTREAM_WIRE_BYTES_SENT DURATION FILTER_CHAIN_NAME
		GRPC_STATUS_NUMBER HOSTNAME LOCAL_REPLY_BODY PACKETS_RETRANSMITTED PROTOCOL REQUESTED_SERVER_NAME
		REQUEST_DURATION REQUEST_HEADERS_BYTES REQUEST_TX_DURATION RESPONSE_CODE RESPONSE_DURATION RESPONSE_FLAGS
		RESPONSE_FLAGS_LONG RESPONSE_HEADERS_BYTES RESPONSE_TRAILERS_BYTES RESPONSE_TX_DURATION ROUNDTRIP_DURATION
		ROUTE_NAME STREAM_ID TLS_JA3_FINGERPRINT TLS_JA4_FINGERPRINT TRACE_ID UNIQUE_ID UPSTREAM_CLUSTER
		UPSTREAM_CLUSTER_RAW UPSTREAM_CONNECTION_ID UPSTREAM_CONNECTION_POOL_READY_DURATION
		UPSTREAM_DECOMPRESSED_HEADER_BYTES_RECEIVED UPSTREAM_DECOMPRESSED_HEADER_BYTES_SENT
		UPSTREAM_HEADER_BYTES_RECEIVED UPSTREAM_HEADER_BYTES_SENT UPSTREAM_HOST UPSTREAM_HOST_NAME
		UPSTREAM_HOST_NAME_WITHOUT_PORT UPSTREAM_LOCAL_ADDRESS UPSTREAM_LOCAL_ADDRESS_WITHOUT_PORT
		UPSTREAM_LOCAL_DNS_SAN UPSTREAM_LOCAL_IP_SAN UPSTREAM_LOCAL_PORT UPSTREAM_LOCAL_URI_SAN UPSTREAM_PEER_CERT
		UPSTREAM_PEER_DNS_SAN UPSTREAM_PEER_IP_SAN UPSTREAM_PEER_ISSUER UPSTREAM_PEER_SUBJECT UPSTREAM_PEER_URI_SAN
		UPSTREAM_PROTOCOL UPSTREAM_REMOTE_ADDRESS UPSTREAM_REMOTE_ADDRESS_WITHOUT_PORT UPSTREAM_REMOTE_PORT
		UPSTREAM_REQUEST_ATTEMPT_COUNT UPSTREAM_TLS_CIPHER UPSTREAM_TLS_SESSION_ID UPSTREAM_TLS_VERSION
		UPSTREAM_TRANSPORT_FAILURE_REASON UPSTREAM_WIRE_BYTES_RECEIVED UPSTREAM_WIRE_BYTES_SENT VIRTUAL_CLUSTER_NAME`

// FormatCommands are the commands that are in force, each in the forms that it may
// have, sorted by name; for documentation and tests.
func FormatCommands() [][]string {
	table := formatCommands()
	var out [][]string
	for _, name := range slices.Sorted(maps.Keys(table)) {
		var forms []string
		arg := table[name]
		add := func(s string) {
			forms = append(forms, "%"+name+s+"%")
			if arg.length {
				forms = append(forms, "%"+name+s+":8%")
			}
		}
		if !arg.needed {
			forms = append(forms, "%"+name+"%")
		}
		if arg.form != nil {
			add("(" + arg.sample + ")")
		}
		out = append(out, forms)
	}
	return out
}

// formatFault says why a format is not in force, or "". It reads as Envoy does:
// from left to right, "%%" is a percent sign, and any other begins
// %COMMAND%, %COMMAND(ARGUMENT)% or %COMMAND(ARGUMENT):LENGTH%, where the argument
// ends at the first parenthesis that the end of a command follows.
func formatFault(format string) string { return formatFaultWith(format, nil) }

// formatFaultWith is formatFault with further commands.
func formatFaultWith(format string, more map[string]func(argument string) string) string {
	for {
		_, rest, found := strings.Cut(format, "%")
		if !found {
			return ""
		}
		if format, found = strings.CutPrefix(rest, "%"); found {
			continue
		}
		match := formatCommand.FindStringSubmatch(rest)
		if match == nil {
			return fmt.Sprintf("%q does not start an Envoy command operator (%%COMMAND%% or %%COMMAND(ARGUMENT)%%, in capitals); write %%%% for a percent sign", clipFormat("%"+rest))
		}
		judge := more[match[1]]
		if judge == nil {
			judge = func(argument string) string { return commandFault(match[1], argument, match[3]) }
		}
		if why := judge(match[2]); why != "" {
			return why
		}
		format = rest[len(match[0]):]
	}
}

// formatCommand is what follows the percent sign, to the end of the command.
var formatCommand = regexp.MustCompile(`^([A-Z0-9_]+)(\(.*?\))?(:[0-9]+)?%`)

// maxFormatLength is the longest :N, in digits.
const maxFormatLength = 5

func commandFault(name, argument, length string) string {
	arg, listed := formatCommands()[name]
	inner := strings.TrimSuffix(strings.TrimPrefix(argument, "("), ")")
	switch {
	case !listed:
		return fmt.Sprintf("%%%s%% is not allowed here: not every Envoy from 1.36 on has this command operator, or it reads something of the host; "+
			"remove it, or write %%%% for a percent sign", name)
	case inner == "" && arg.needed:
		return fmt.Sprintf("%%%s%% needs an argument, such as %%%s(%s)%%", name, name, arg.sample)
	case inner != "" && arg.form == nil:
		return fmt.Sprintf("%%%s%% takes no argument", name)
	case inner != "" && !arg.form.MatchString(inner):
		return fmt.Sprintf("%%%s%% does not accept the argument %s; write one such as %%%s(%s)%%", name, strconv.Quote(clipFormat(inner)), name, arg.sample)
	case length != "" && (!arg.length || inner == "" || len(length) > 1+maxFormatLength):
		return fmt.Sprintf("%%%s%% takes no length %s", name, clipFormat(length))
	}
	return ""
}

// clipFormat makes a text short enough for a sentence.
func clipFormat(s string) string {
	const longest = 40
	if len(s) <= longest {
		return s
	}
	return s[:longest] + "…"
}

// formats judges the values of all fields that are formats.
func (u unfitCheck) formats(m protoreflect.Message, at string) {
	if !hasFormats(m.Descriptor()) {
		return
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		at := at + "." + fd.JSONName()
		switch {
		case fd.IsList():
			for i := range v.List().Len() {
				u.format(fd, fd, v.List().Get(i), at+"["+strconv.Itoa(i)+"]")
			}
		case fd.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				u.format(fd, fd.MapValue(), v, tree.Join(at, k.String()))
				return true
			})
		default:
			u.format(fd, fd, v, at)
		}
		return true
	})
}

// format judges a value of the field.
func (u unfitCheck) format(field, value protoreflect.FieldDescriptor, v protoreflect.Value, at string) {
	switch {
	case value.Message() != nil:
		u.formats(v.Message(), at)
	case value.Kind() == protoreflect.StringKind && formats[field.FullName()]:
		if why := formatFault(v.String()); why != "" {
			u.report(at, why)
		}
	}
}

// formatted are the messages that have formats somewhere below them; a few dozen.
//
//nolint:gochecknoglobals // a cache of what is constant
var formatted sync.Map // protoreflect.FullName to bool

func hasFormats(d protoreflect.MessageDescriptor) bool {
	if have, ok := formatted.Load(d.FullName()); ok {
		found, _ := have.(bool)
		return found
	}
	found := reachesFormat(d, map[protoreflect.FullName]bool{})
	formatted.Store(d.FullName(), found)
	return found
}

func reachesFormat(d protoreflect.MessageDescriptor, seen map[protoreflect.FullName]bool) bool {
	if seen[d.FullName()] {
		return false
	}
	seen[d.FullName()] = true
	for i := range d.Fields().Len() {
		fd := d.Fields().Get(i)
		if formats[fd.FullName()] {
			return true
		}
		below := fd.Message()
		if fd.IsMap() {
			below = fd.MapValue().Message()
		}
		if below != nil && reachesFormat(below, seen) {
			return true
		}
	}
	return false
}
