package manifest

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	telemetry "istio.io/api/telemetry/v1alpha1"

	"github.com/fairlead/fairlead/registry/manifest/tree"
	"github.com/fairlead/fairlead/registry/mesh"
)

// ownLabels are those that Envoy gives to a metric for the agent, which completes them, and
// what a Telemetry would break by writing them.
//
//nolint:gochecknoglobals // a read-only table
var ownLabels = []string{"fairlead_removed", "le", "peer", "peer_principal", "reporter", "service"}

// labelName is the name of a label of Prometheus.
var labelName = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

// minReportInterval is the least interval in which agents get what open connections have sent.
const minReportInterval = time.Second

// metrics judges what a Telemetry says of metrics.
func (u unfitCheck) metrics(m *telemetry.Metrics, at string) {
	if d := m.GetReportingInterval(); d != nil && d.AsDuration() < minReportInterval {
		u.report(at+".reportingInterval", fmt.Sprintf("%s is less than %s", d.AsDuration(), minReportInterval))
	}
	for i, o := range m.GetOverrides() {
		for _, name := range slices.Sorted(maps.Keys(o.GetTagOverrides())) {
			tag, at := o.GetTagOverrides()[name], tree.Join(fmt.Sprintf("%s.overrides[%d].tagOverrides", at, i), name)
			switch {
			case !labelName.MatchString(name):
				u.report(at, fmt.Sprintf("%q is no name of a label of Prometheus", clipFormat(name)))
			case tag.GetOperation() == telemetry.MetricsOverrides_TagOverride_REMOVE:
			case slices.Contains(ownLabels, name):
				u.report(at, "the label "+name+" cannot have another value")
			default:
				u.labelValue(tag.GetValue(), at+".value")
			}
		}
	}
}

// labelValue judges the expression for the value of a label.
func (u unfitCheck) labelValue(text, at string) {
	expression := mesh.MetricLabelExpression(text)
	u.expression(expression, at)
	if strings.Contains(mesh.MetricLabelFormat(text), "%CEL(") && strings.Contains(expression, ")%") {
		u.report(at, `an expression with ")%" ends there for Envoy`)
	}
}
