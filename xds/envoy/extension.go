package envoy

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/xds/authz"
	"github.com/fairlead/fairlead/xds/view"
)

const (
	rbacType = "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC"
	jwtType  = "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication"
)

// slotTypes are what may stand in the slots. All others have RBAC.
func slotTypes(slot view.Slot) []string {
	switch slot {
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
	var filter proto.Message
	var diagnostics []Diagnostic
	switch p.Slot {
	case view.JWTSlot:
		filter, diagnostics = buildAuthentication(p.Authentication)
	default:
		filter, diagnostics = buildRBAC(p)
	}
	return &corev3.TypedExtensionConfig{Name: string(p.Slot), TypedConfig: pack(filter)}, diagnostics
}

func buildRBAC(p *view.Extension) (*rbacv3.RBAC, []Diagnostic) {
	rbac := &rbacv3.RBAC{}
	var diagnostics []Diagnostic
	switch {
	case p.Deny:
		rbac.Rules, rbac.RulesStatPrefix = denyAll(), "unenforced."
	case p.Authorization != nil:
		rules := authz.HTTP(policiesOf(p.Authorization))
		if sets := rules.InOrder(); len(sets) == 1 {
			rbac = sets[0].HTTPFilter()
		} else { // policies of one action give one set: nothing else may open the slot
			rbac.Rules = denyAll()
		}
		diagnostics = untranslated(p.Authorization, rules.Faults)
	}
	return rbac, diagnostics
}
