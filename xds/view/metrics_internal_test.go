package view

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	telemetry "istio.io/api/telemetry/v1alpha1"
)

// TestMergeMetrics has Istio's rules: which provider counts, and which override is the last.
func TestMergeMetrics(t *testing.T) {
	t.Parallel()
	by := func(names ...string) []*telemetry.ProviderRef {
		var out []*telemetry.ProviderRef
		for _, name := range names {
			out = append(out, &telemetry.ProviderRef{Name: name})
		}
		return out
	}
	all := &telemetry.MetricSelector{}
	one := func(m telemetry.MetricSelector_IstioMetric, mode telemetry.WorkloadMode) *telemetry.MetricSelector {
		return &telemetry.MetricSelector{MetricMatch: &telemetry.MetricSelector_Metric{Metric: m}, Mode: mode}
	}
	const both, client, server = telemetry.WorkloadMode_CLIENT_AND_SERVER, telemetry.WorkloadMode_CLIENT, telemetry.WorkloadMode_SERVER
	const count, size = telemetry.MetricSelector_REQUEST_COUNT, telemetry.MetricSelector_REQUEST_SIZE
	off := func(match *telemetry.MetricSelector, disabled bool) *telemetry.MetricsOverrides {
		return &telemetry.MetricsOverrides{Match: match, Disabled: wrapperspb.Bool(disabled)}
	}
	tag := func(match *telemetry.MetricSelector, name, value string) *telemetry.MetricsOverrides {
		o := &telemetry.MetricsOverrides_TagOverride{Value: value}
		if value == "" {
			o.Operation = telemetry.MetricsOverrides_TagOverride_REMOVE
		}
		return &telemetry.MetricsOverrides{Match: match, TagOverrides: map[string]*telemetry.MetricsOverrides_TagOverride{name: o}}
	}
	entry := func(providers []*telemetry.ProviderRef, overrides ...*telemetry.MetricsOverrides) *telemetry.Metrics {
		return &telemetry.Metrics{Providers: providers, Overrides: overrides}
	}
	often := entry(nil)
	often.ReportingInterval = durationpb.New(time.Second)
	for name, c := range map[string]struct {
		entries  []*telemetry.Metrics
		defaults []string
		want     string // as text below
	}{
		"nobody":                  {nil, nil, "none"},
		"default":                 {nil, []string{"prometheus"}, "on"},
		"default_does_not_count":  {nil, []string{"other"}, "none"},
		"chosen":                  {[]*telemetry.Metrics{entry(by("prometheus"))}, nil, "on"},
		"chosen_other":            {[]*telemetry.Metrics{entry(by("other"))}, []string{"prometheus"}, "none"},
		"last_choice":             {[]*telemetry.Metrics{entry(by("other")), entry(by("prometheus"))}, nil, "on"},
		"choice_before_is_out":    {[]*telemetry.Metrics{entry(by("prometheus"), off(all, true)), entry(by("prometheus2"))}, nil, "on"},
		"first_by_name":           {[]*telemetry.Metrics{entry(by("prometheus2", "prometheus")), entry(nil, off(one(count, both), true))}, nil, "on REQUEST_COUNT:off"},
		"all_off":                 {[]*telemetry.Metrics{entry(nil, off(all, true))}, []string{"prometheus"}, "off"},
		"off_and_on":              {[]*telemetry.Metrics{entry(nil, off(all, true)), entry(nil, off(all, false))}, []string{"prometheus"}, "on"},
		"one_on_after_all_off":    {[]*telemetry.Metrics{entry(nil, off(all, true), off(one(count, both), false))}, []string{"prometheus"}, "on"},
		"one_off":                 {[]*telemetry.Metrics{entry(nil, off(one(size, both), true))}, []string{"prometheus"}, "on REQUEST_SIZE:off"},
		"of_this_side":            {[]*telemetry.Metrics{entry(nil, off(one(size, server), true))}, []string{"prometheus"}, "on REQUEST_SIZE:off"},
		"of_the_other_side":       {[]*telemetry.Metrics{entry(nil, off(one(size, client), true))}, []string{"prometheus"}, "on"},
		"tags_add_up":             {[]*telemetry.Metrics{entry(nil, tag(one(count, both), "a", "x")), entry(nil, tag(one(count, both), "b", ""))}, []string{"prometheus"}, "on REQUEST_COUNT:a=x,-b"},
		"the_last_tag":            {[]*telemetry.Metrics{entry(nil, tag(one(count, both), "a", "x")), entry(nil, tag(one(count, both), "a", "y"))}, []string{"prometheus"}, "on REQUEST_COUNT:a=y"},
		"removed_and_back":        {[]*telemetry.Metrics{entry(nil, tag(one(count, both), "a", "")), entry(nil, tag(one(count, both), "a", "y"))}, []string{"prometheus"}, "on REQUEST_COUNT:a=y"},
		"tag_keeps_a_metric_off":  {[]*telemetry.Metrics{entry(nil, off(one(count, both), true)), entry(nil, tag(one(count, both), "a", "y"))}, []string{"prometheus"}, "on REQUEST_COUNT:off,a=y"},
		"interval":                {[]*telemetry.Metrics{often, entry(nil)}, []string{"prometheus"}, "on 1s"},
		"without_default_or_name": {[]*telemetry.Metrics{entry(nil, off(one(count, both), false))}, nil, "none"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			use := mergeMetrics(c.entries, c.defaults, server, func(name string) bool { return strings.HasPrefix(name, "prometheus") })
			if got := describeUse(use); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// describeUse is what is merged, as a text: overrides that say something, by metric.
func describeUse(u *metricsUse) string {
	switch {
	case u == nil:
		return "none"
	case u.disabled:
		return "off"
	}
	out := []string{"on"}
	if u.interval > 0 {
		out = append(out, u.interval.String())
	}
	for _, kind := range slices.Sorted(maps.Keys(u.overrides)) {
		o := u.overrides[kind]
		var parts []string
		if o.disabled {
			parts = append(parts, "off")
		}
		for _, l := range o.labels() {
			parts = append(parts, fmt.Sprintf("%s=%s", l.Name, strings.TrimSuffix(strings.TrimPrefix(l.Format, "%CEL("), ")%")))
		}
		for _, name := range o.without() {
			parts = append(parts, "-"+name)
		}
		if len(parts) > 0 {
			out = append(out, kind+":"+strings.Join(parts, ","))
		}
	}
	return strings.Join(out, " ")
}
