package main

import (
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"
	security "istio.io/api/security/v1beta1"

	"github.com/fairlead/fairlead/registry/codes"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/xds/authz"
)

// codeUntranslatable: a value of a policy that Istio's webhook takes and no Envoy would.
const codeUntranslatable = codes.Untranslatable

// untranslatable finds the values of AuthorizationPolicies that Istio's webhook takes and that
// cannot be given to an Envoy, by the translation that servers use. What they stand for is
// denied, so that no Envoy refuses the rest.
func untranslatable(objects []*manifest.Object, severity manifest.Severity) (findings []finding) {
	for _, o := range objects {
		spec, ok := o.Spec.(*security.AuthorizationPolicy)
		if !ok || !o.InForce() {
			continue
		}
		for i, r := range spec.GetRules() {
			faults := translationFaults(spec, r)
			if len(faults) == 0 {
				continue
			}
			at := fmt.Sprintf("spec.rules[%d]", i)
			found := len(findings)
			for field, one := range singleValues(r) {
				for _, f := range translationFaults(spec, one) {
					findings = append(findings, untranslatableAt(o, at+"."+field, spec, f, severity))
				}
			}
			if len(findings) == found { // no value alone
				findings = append(findings, untranslatableAt(o, at, spec, faults[0], severity))
			}
		}
	}
	return findings
}

func untranslatableAt(o *manifest.Object, field string, spec *security.AuthorizationPolicy, f authz.PolicyError, severity manifest.Severity) finding {
	effect := "so the rule matches without this list, and more than is meant"
	if spec.GetAction() == security.AuthorizationPolicy_ALLOW {
		effect = "so the whole rule allows nothing"
	}
	return findingOf(manifest.Fault{
		Origin: o.Origin(field), Key: o.Meta.Key, Field: field, Code: codeUntranslatable, Severity: severity,
		Message: fmt.Sprintf("Envoy cannot enforce this, although Istio accepts it: %v; %s; correct the value", errors.Unwrap(f), effect),
	})
}

// translationFaults is what of a rule cannot be translated, for HTTP and for TCP.
func translationFaults(spec *security.AuthorizationPolicy, r *security.Rule) []authz.PolicyError {
	one := &security.AuthorizationPolicy{Action: spec.GetAction(), ActionDetail: spec.GetActionDetail(), Rules: []*security.Rule{r}}
	// Whether a provider exists is for others to say.
	o := authz.Options{Providers: map[string]error{spec.GetProvider().GetName(): nil}}
	policies := []authz.Policy{{Namespace: "policy", Name: "policy", Spec: one}}
	faults := slices.Concat(authz.HTTP(policies, o).Faults, authz.TCP(policies, o).Faults)
	seen := map[string]bool{}
	return slices.DeleteFunc(faults, func(f authz.PolicyError) bool {
		again := seen[f.Error()]
		seen[f.Error()] = true
		return again
	})
}

// singleValues yields a rule for each value of a rule, which has nothing else, and the field of
// the value.
func singleValues(r *security.Rule) func(yield func(field string, one *security.Rule) bool) {
	return func(yield func(string, *security.Rule) bool) {
		for i, f := range r.GetFrom() {
			s := f.GetSource()
			for name, one := range eachValue(s.ProtoReflect()) {
				source, ok := one.Interface().(*security.Source)
				if ok && !yield(fmt.Sprintf("from[%d].source.%s", i, name), &security.Rule{From: []*security.Rule_From{{Source: source}}}) {
					return
				}
			}
		}
		for i, t := range r.GetTo() {
			for name, one := range eachValue(t.GetOperation().ProtoReflect()) {
				operation, ok := one.Interface().(*security.Operation)
				if ok && !yield(fmt.Sprintf("to[%d].operation.%s", i, name), &security.Rule{To: []*security.Rule_To{{Operation: operation}}}) {
					return
				}
			}
		}
		for i, c := range r.GetWhen() {
			for name, one := range eachValue(c.ProtoReflect()) {
				condition, ok := one.Interface().(*security.Condition)
				if !ok {
					continue
				}
				condition.Key = c.GetKey()
				if !yield(fmt.Sprintf("when[%d].%s", i, name), &security.Rule{When: []*security.Condition{condition}}) {
					return
				}
			}
		}
	}
}

// eachValue yields a message for each value of each list of texts in a message, which has
// nothing else, and the field of the value.
func eachValue(m protoreflect.Message) func(yield func(field string, one protoreflect.Message) bool) {
	return func(yield func(string, protoreflect.Message) bool) {
		fields := m.Descriptor().Fields()
		for i := range fields.Len() {
			f := fields.Get(i)
			if !f.IsList() || f.Kind() != protoreflect.StringKind {
				continue
			}
			values := m.Get(f).List()
			for k := range values.Len() {
				one := m.New()
				one.Mutable(f).List().Append(values.Get(k))
				if !yield(fmt.Sprintf("%s[%d]", f.JSONName(), k), one) {
					return
				}
			}
		}
	}
}
