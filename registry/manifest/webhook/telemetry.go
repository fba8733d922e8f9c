package webhook

import (
	"github.com/google/cel-go/cel"
	telemetryv1alpha1 "istio.io/api/telemetry/v1alpha1"
)

func telemetry(c cursor, _ Object, t *telemetryv1alpha1.Telemetry) {
	c.target(t)
	for i, m := range t.Metrics {
		c.item("metrics", i).metrics(m)
	}
	if len(t.Tracing) > 1 {
		c.at("tracing").warn("only the first entry of tracing has an effect; remove the others")
	}
	for i, tr := range t.Tracing {
		c.item("tracing", i).tracing(tr)
	}
	for i, l := range t.AccessLogging {
		at := c.item("accessLogging", i)
		if f := l.GetFilter(); f != nil {
			at.at("filter").at("expression").expression(f.Expression)
		}
		at.providers(l.GetProviders())
	}
}

func (c cursor) providers(list []*telemetryv1alpha1.ProviderRef) {
	for i, p := range list {
		if p.GetName() == "" {
			c.item("providers", i).at("name").wrong("the provider has no name; write one of the mesh's extensionProviders")
		}
	}
}

// expression judges only the syntax: what is known of a request is the proxy's affair.
func (c cursor) expression(text string) {
	env, err := cel.NewEnv()
	if err != nil {
		c.wrong("the expression cannot be judged: %v", err)
		return
	}
	if _, issues := env.Parse(text); issues.Err() != nil {
		first := issues.Errors()[0]
		c.wrong("%q is not a CEL expression: %s (character %d)", text, first.Message, first.Location.Column()+1)
	}
}

func (c cursor) tracing(t *telemetryv1alpha1.Tracing) {
	if t == nil {
		return
	}
	if len(t.Providers) > 1 {
		c.at("providers").warn("only the first provider has an effect; remove the others")
	}
	c.providers(t.Providers)
	if v := t.RandomSamplingPercentage.GetValue(); v < 0 || v > 100 {
		c.at("randomSamplingPercentage").wrong("%v %% is out of range; use 0 to 100", v)
	}
	for _, name := range sorted(t.CustomTags) {
		at := c.entry("customTags", name)
		if name == "" {
			at.wrong("the tag has no name")
		}
		switch tag := t.CustomTags[name].GetType().(type) {
		case *telemetryv1alpha1.Tracing_CustomTag_Literal:
			if tag.Literal.GetValue() == "" {
				at.at("literal").wrong("the tag has no value; write literal.value")
			}
		case *telemetryv1alpha1.Tracing_CustomTag_Header:
			if tag.Header.GetName() == "" {
				at.at("header").wrong("the tag names no header; write header.name")
			}
		case *telemetryv1alpha1.Tracing_CustomTag_Environment:
			if tag.Environment.GetName() == "" {
				at.at("environment").wrong("the tag names no variable; write environment.name")
			}
		}
		if t.CustomTags[name] == nil {
			at.wrong("the tag is null; write literal, header or environment")
		}
	}
}

func (c cursor) metrics(m *telemetryv1alpha1.Metrics) {
	c.providers(m.GetProviders())
	for i, o := range m.GetOverrides() {
		at := c.item("overrides", i)
		if o == nil {
			at.wrong("the override is null; remove it")
			continue
		}
		for _, name := range sorted(o.TagOverrides) {
			at.entry("tagOverrides", name).tagOverride(name, o.TagOverrides[name])
		}
		custom, ok := o.GetMatch().GetMetricMatch().(*telemetryv1alpha1.MetricSelector_CustomMetric)
		if ok && custom.CustomMetric == "" {
			at.at("match").at("customMetric").wrong("the metric has no name")
		}
	}
}

func (c cursor) tagOverride(name string, o *telemetryv1alpha1.MetricsOverrides_TagOverride) {
	if name == "" {
		c.warn("the tag has no name")
	}
	if o == nil {
		c.wrong("the override is null; write operation and value")
		return
	}
	switch o.Operation {
	case telemetryv1alpha1.MetricsOverrides_TagOverride_UPSERT:
		if o.Value == "" {
			c.wrong("UPSERT needs a value; write value, or operation: REMOVE")
		}
	case telemetryv1alpha1.MetricsOverrides_TagOverride_REMOVE:
		if o.Value != "" {
			c.at("value").wrong("REMOVE takes no value; remove it, or write operation: UPSERT")
		}
	}
}
