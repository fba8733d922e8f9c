package envoy

import (
	"errors"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/xds/authz"
	"github.com/fairlead/fairlead/xds/view"
)

const (
	rbacType     = "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC"
	extAuthzType = "type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthz"
	jwtType      = "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication"
)

// slotTypes are the types of filters that a slot may have. All others have RBAC; without rules it
// has no effect, also in the place of ext_authz.
func slotTypes(slot view.Slot) []string {
	switch slot.Kind() {
	case view.ExtAuthzSlot:
		return []string{extAuthzType, rbacType}
	case view.JWTSlot:
		return []string{jwtType}
	default:
		return []string{rbacType}
	}
}

// discoveredFilter is a filter whose configuration is an extension of its name. There is no
// default configuration, and Envoy waits for the extension without a timeout: it does not
// serve a chain whose rules it does not have.
func discoveredFilter(slot view.Slot) *hcmv3.HttpFilter {
	return &hcmv3.HttpFilter{Name: string(slot), ConfigType: &hcmv3.HttpFilter_ConfigDiscovery{
		ConfigDiscovery: &corev3.ExtensionConfigSource{ConfigSource: ads(), TypeUrls: slotTypes(slot)},
	}}
}

// buildExtension makes the configuration of a filter. One without rules has no effect.
func buildExtension(p *view.Extension) (*corev3.TypedExtensionConfig, []Diagnostic) {
	var filter proto.Message = &rbacv3.RBAC{}
	var diagnostics []Diagnostic
	switch {
	case p.Slot == view.JWTSlot:
		filter, diagnostics = buildAuthentication(p.Authentication, p.ClearRouteCache)
	case p.Deny:
		filter = &rbacv3.RBAC{Rules: denyAll(), RulesStatPrefix: "unenforced."}
	case p.Slot.Kind() == view.ExtAuthzSlot:
		filter, diagnostics = buildExtAuthz(p)
	case p.Authorization != nil:
		filter, diagnostics = buildRBAC(p)
	}
	return &corev3.TypedExtensionConfig{Name: string(p.Slot), TypedConfig: pack(filter)}, diagnostics
}

// buildRBAC makes the rules of the policies of one action, and of one provider if that is CUSTOM:
// these give one set. Nothing else may open the slot.
func buildRBAC(p *view.Extension) (*rbacv3.RBAC, []Diagnostic) {
	policies, options := policiesOf(p.Authorization)
	for _, policy := range p.Authorization.Policies {
		options.Providers[policy.Provider] = nil // another slot asks it, or denies
	}
	rules := authz.HTTP(policies, options)
	sets := rules.InOrder()
	for _, c := range rules.Custom {
		sets = append(sets, c.Set)
	}
	diagnostics := untranslated(p.Authorization, rules.Faults)
	if len(sets) != 1 || (p.Slot.Kind() == view.CustomSlot) != (len(rules.Custom) == 1) {
		return &rbacv3.RBAC{Rules: denyAll()}, diagnostics
	}
	return sets[0].HTTPFilter(), diagnostics
}

// buildExtAuthz makes the filter that asks a provider. If it cannot be asked, what the rules of
// its policies match is denied.
func buildExtAuthz(p *view.Extension) (proto.Message, []Diagnostic) {
	if p.Provider == nil {
		return &rbacv3.RBAC{}, nil
	}
	if p.Provider.Fault == "" {
		of := ""
		if p.Slot != view.ExtAuthzSlot {
			of = p.Provider.Name
		}
		out := httpExtAuthz(p.Provider, of)
		if err := out.ValidateAll(); err != nil {
			return &rbacv3.RBAC{Rules: denyAsked(of)}, []Diagnostic{invalidProvider(p.Provider, err)}
		}
		return out, nil
	}
	policies, options := policiesOf(p.Authorization)
	options.Providers[p.Provider.Name] = errors.New(p.Provider.Fault)
	rules := authz.HTTP(policies, options)
	// What else could not be translated, the slot of the rules has reported.
	faults := slices.DeleteFunc(rules.Faults, func(f authz.PolicyError) bool { return !errors.Is(f, options.Providers[p.Provider.Name]) })
	diagnostics := untranslated(p.Authorization, faults)
	if len(rules.Custom) != 1 || rules.Custom[0].Denied == nil {
		return &rbacv3.RBAC{Rules: denyAll()}, diagnostics
	}
	return &rbacv3.RBAC{Rules: rules.Custom[0].Denied}, diagnostics
}
