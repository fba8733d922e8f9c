package authz

import (
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
)

// permissions is the logic of permissions.
//
//nolint:gochecknoglobals // a read-only table
var permissions = logic[*rbacv3.Permission]{
	any: func() *rbacv3.Permission { return &rbacv3.Permission{Rule: &rbacv3.Permission_Any{Any: true}} },
	and: func(all []*rbacv3.Permission) *rbacv3.Permission {
		return &rbacv3.Permission{Rule: &rbacv3.Permission_AndRules{AndRules: &rbacv3.Permission_Set{Rules: all}}}
	},
	or: func(all []*rbacv3.Permission) *rbacv3.Permission {
		return &rbacv3.Permission{Rule: &rbacv3.Permission_OrRules{OrRules: &rbacv3.Permission_Set{Rules: all}}}
	},
	not: func(one *rbacv3.Permission) *rbacv3.Permission {
		return &rbacv3.Permission{Rule: &rbacv3.Permission_NotRule{NotRule: one}}
	},
}

// principals is the logic of principals.
//
//nolint:gochecknoglobals // a read-only table
var principals = logic[*rbacv3.Principal]{
	any: func() *rbacv3.Principal { return &rbacv3.Principal{Identifier: &rbacv3.Principal_Any{Any: true}} },
	and: func(all []*rbacv3.Principal) *rbacv3.Principal {
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_AndIds{AndIds: &rbacv3.Principal_Set{Ids: all}}}
	},
	or: func(all []*rbacv3.Principal) *rbacv3.Principal {
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_OrIds{OrIds: &rbacv3.Principal_Set{Ids: all}}}
	},
	not: func(one *rbacv3.Principal) *rbacv3.Principal {
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_NotId{NotId: one}}
	},
}

// matchNever is a rule that no request matches.
func matchNever() *rbacv3.Policy {
	return &rbacv3.Policy{
		Permissions: []*rbacv3.Permission{permissions.not(permissions.any())},
		Principals:  []*rbacv3.Principal{principals.not(principals.any())},
	}
}

// matchAlways is a rule that every request matches.
func matchAlways() *rbacv3.Policy {
	return &rbacv3.Policy{
		Permissions: []*rbacv3.Permission{permissions.any()},
		Principals:  []*rbacv3.Principal{principals.any()},
	}
}
