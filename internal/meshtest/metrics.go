package meshtest

import (
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// AgentHTTP is where the agent at the mesh's own address N serves its page of metrics, if it was
// started with --http-address and this address: Istio's port, at an address that is no other
// test's.
func (m *Mesh) AgentHTTP(n int) string { return net.JoinHostPort(m.Address(n), "15020") }

// Sample is a line of a page of metrics.
type Sample struct {
	Name   string
	Labels map[string]string
	Value  float64
}

// String is the sample as it is on the page, with its labels in order.
func (s Sample) String() string {
	var b strings.Builder
	b.WriteString(s.Name + "{")
	for i, name := range slices.Sorted(maps.Keys(s.Labels)) {
		if i > 0 {
			b.WriteByte(',')
		}
		_, _ = fmt.Fprintf(&b, "%s=%q", name, s.Labels[name])
	}
	_, _ = fmt.Fprintf(&b, "} %v", s.Value)
	return b.String()
}

// Samples are those of a page.
type Samples []Sample

// Sum is the sum of all samples with a name and these labels, given as name and value in turn.
func (s Samples) Sum(name string, labels ...string) (sum float64) {
	for _, x := range s.Matching(name, labels...) {
		if x.Name == name {
			sum += x.Value
		}
	}
	return sum
}

// Matching are the samples whose name begins with a prefix and that have these labels, given as
// name and value in turn.
func (s Samples) Matching(prefix string, labels ...string) Samples {
	var out Samples
	for _, x := range s {
		has := strings.HasPrefix(x.Name, prefix)
		for i := 0; i+1 < len(labels); i += 2 {
			has = has && x.Labels[labels[i]] == labels[i+1]
		}
		if has {
			out = append(out, x)
		}
	}
	return out
}

// String is one sample a line.
func (s Samples) String() string {
	lines := make([]string, len(s))
	for i, x := range s {
		lines[i] = x.String()
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// Metrics are the counters, gauges, and sums and counts of histograms on the page of metrics of
// the agent at the mesh's own address N: see [Mesh.AgentHTTP].
func (m *Mesh) Metrics(n int) (Samples, error) {
	req, err := http.NewRequestWithContext(m.tb.Context(), http.MethodGet, "http://"+m.AgentHTTP(n)+"/stats/prometheus", http.NoBody)
	if err != nil {
		return nil, err
	}
	res, err := (&http.Client{Timeout: envoytest.Patience, Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %.200s", res.Status, body)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the metrics of host %d: %w", n, err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(string(body)))
	if err != nil {
		return nil, fmt.Errorf("the page of metrics of host %d: %w", n, err)
	}
	var out Samples
	for name, f := range families {
		for _, x := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range x.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			add := func(suffix string, v float64) { out = append(out, Sample{name + suffix, labels, v}) }
			switch {
			case x.GetCounter() != nil:
				add("", x.GetCounter().GetValue())
			case x.GetGauge() != nil:
				add("", x.GetGauge().GetValue())
			case x.GetHistogram() != nil:
				add("_count", float64(x.GetHistogram().GetSampleCount()))
				add("_sum", x.GetHistogram().GetSampleSum())
			}
		}
	}
	return out, nil
}
