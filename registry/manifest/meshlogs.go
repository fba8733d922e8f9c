package manifest

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/registry/manifest/tree"
)

// accessLogs refuses formats and files of access logs that an Envoy would refuse: it would
// refuse the whole listener.
func (m *meshReading) accessLogs(spec *meshconfig.MeshConfig) {
	m.logFile("accessLogFile", spec.GetAccessLogFile())
	switch text := spec.GetAccessLogFormat(); spec.GetAccessLogEncoding() {
	case meshconfig.MeshConfig_JSON:
		if fields := new(structpb.Struct); text != "" && protojson.Unmarshal([]byte(text), fields) != nil {
			m.refuseLog("accessLogFormat", "with accessLogEncoding: JSON it must be a JSON object, in one text")
		} else {
			m.logFields("accessLogFormat", fields)
		}
	default:
		m.logFormat("accessLogFormat", text)
	}
	for i, p := range spec.GetExtensionProviders() {
		at := fmt.Sprintf("extensionProviders[%d]", i)
		if f := p.GetEnvoyFileAccessLog(); f != nil {
			m.logFile(at+".envoyFileAccessLog.path", f.GetPath())
			m.logFormat(at+".envoyFileAccessLog.logFormat.text", f.GetLogFormat().GetText())
			m.logFields(at+".envoyFileAccessLog.logFormat.labels", f.GetLogFormat().GetLabels())
		}
		if f := p.GetEnvoyOtelAls().GetLogFormat(); f != nil {
			m.logFormat(at+".envoyOtelAls.logFormat.text", f.GetText())
			m.logFields(at+".envoyOtelAls.logFormat.labels", f.GetLabels())
		}
	}
}

func (m *meshReading) refuseLog(at, why string) {
	if !m.reported(at) {
		m.refuse(CodeNotInForce, m.root.Nearest(at), at, "not in force: "+why)
	}
}

// logFile judges the path of a file that proxies write.
func (m *meshReading) logFile(at, file string) {
	switch {
	case file == "":
	case !path.IsAbs(file):
		m.refuseLog(at, fmt.Sprintf("%q is not an absolute path", file))
	case strings.ContainsRune(file, 0):
		m.refuseLog(at, "the path has a zero byte")
	case isOwnSocket(file):
		m.refuseLog(at, fmt.Sprintf("%q is, or may be, a file of Fairlead", file))
	}
}

// logFields judges the formats in the fields of an entry.
func (m *meshReading) logFields(at string, fields *structpb.Struct) {
	for _, key := range slices.Sorted(maps.Keys(fields.GetFields())) {
		m.logValue(tree.Join(at, key), fields.GetFields()[key])
	}
}

func (m *meshReading) logValue(at string, v *structpb.Value) {
	switch of := v.GetKind().(type) {
	case *structpb.Value_StringValue:
		m.logFormat(at, of.StringValue)
	case *structpb.Value_StructValue:
		m.logFields(at, of.StructValue)
	case *structpb.Value_ListValue:
		for i, e := range of.ListValue.GetValues() {
			m.logValue(at+"["+strconv.Itoa(i)+"]", e)
		}
	}
}

func (m *meshReading) logFormat(at, format string) {
	if why := formatFaultWith(format, logCommands); why != "" {
		m.refuseLog(at, why)
	}
}

// logCommands are what a format of an access log may have besides [FormatCommands]. MeshConfig
// is written by those who own the mesh, so it may read Envoy's environment.
//
//nolint:gochecknoglobals // a read-only table
var logCommands = map[string]func(argument string) string{
	"CEL": func(argument string) string {
		return expressionFault(strings.TrimSuffix(strings.TrimPrefix(argument, "("), ")"))
	},
	"ENVIRONMENT": needsArgument("ENVIRONMENT", regexp.MustCompile(`^\([A-Za-z0-9_]+\)$`), "NAME"),
	"RESPONSE_CODE_DETAILS": func(argument string) string {
		if argument == "" || argument == "(ALLOW_WHITESPACES)" {
			return ""
		}
		return "%RESPONSE_CODE_DETAILS% takes no argument but ALLOW_WHITESPACES"
	},
	"REQ_WITHOUT_QUERY": needsArgument("REQ_WITHOUT_QUERY", regexp.MustCompile(`^\(:?[A-Za-z0-9_.-]+(\?:?[A-Za-z0-9_.-]+)?\)$`), "X-ENVOY-ORIGINAL-PATH?:PATH"),
}

func needsArgument(name string, form *regexp.Regexp, sample string) func(string) string {
	return func(argument string) string {
		if form.MatchString(argument) {
			return ""
		}
		return fmt.Sprintf("%%%s%% needs an argument, such as %%%s(%s)%%", name, name, sample)
	}
}
