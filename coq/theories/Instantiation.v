(** * Patterns that take patterns

    A program is a list of definitions.  A definition has parameters that stand for patterns, numbered,
    beside those that stand for values; a call gives both.  This file says what such patterns mean, and
    that instances mean the same: what a call gives is known before anything is matched, so that each
    definition, given its patterns, becomes a [μ] of the calculus. *)

From Coq Require Import List Bool PeanoNat.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative.

Section Instantiation.
Context {Δ : Domain}.

(** ** Syntax *)

(** What a call names: the pattern that a parameter stands for, or a definition that is given such. *)
Inductive named : Type :=
| NParam (i : nat)
| NDef (d : nat) (gs : list named).

Inductive xpattern : Type :=
| XVar (x : name)
| XOp (f : op) (ps : list xpattern)
| XFun (F : name) (ps : list xpattern)
| XAlt (p q : xpattern)
| XEx (x : name) (p : xpattern)
| XGuard (p : xpattern) (g : guard)
| XLet (p : xpattern) (x : name) (e : expr)
| XMatch (p p' : xpattern) (x : name)
| XCall (c : named) (ys : list name).

(** Parameters for values, and a body.  How many patterns it takes is said by its calls. *)
Record schema : Type := Schema { s_params : list name; s_body : xpattern }.

(** A definition with the patterns that it was given, which are instances as well. *)
Inductive applied : Type :=
| Applied (d : nat) (js : list applied).

(** What a name stands for, where the pattern parameters stand for [js]. *)
Fixpoint resolve (js : list applied) (c : named) : option applied :=
  match c with
  | NParam i => nth_error js i
  | NDef d gs => option_map (Applied d) (sequence (map (resolve js) gs))
  end.

Lemma applied_eq_dec : forall j k : applied, {j = k} + {j <> k}.
Proof.
  fix IH 1. intros [d js] [e ks].
  destruct (Nat.eq_dec d e) as [-> | N]; [| right; congruence].
  destruct (list_eq_dec IH js ks) as [-> | N]; [left; reflexivity | right; congruence].
Defined.

Variable Γ : list schema.

(** ** Meaning

    [Γ; js ⊢ p @ θ ≈ t]: where its pattern parameters stand for [js], [p] matches [t] with [θ]. *)

Section Meaning.
Context {T : Type} {Σ : Structure T}.

Inductive xmatches : list applied -> xpattern -> env T -> T -> Prop :=
| X_var js x θ t :
    θ x = Some (VTerm t) ->
    xmatches js (XVar x) θ t
| X_op js f ps θ t ts :
    dest t = (f, ts) -> xmatches_all js ps θ ts ->
    xmatches js (XOp f ps) θ t
| X_fun js F ps θ t f ts :
    dest t = (f, ts) -> θ F = Some (VOp f) -> xmatches_all js ps θ ts ->
    xmatches js (XFun F ps) θ t
| X_alt_l js p q θ t :
    xmatches js p θ t ->
    xmatches js (XAlt p q) θ t
| X_alt_r js p q θ t :
    xmatches js q θ t ->
    xmatches js (XAlt p q) θ t
| X_ex js x p θ t v :
    xmatches js p (update θ x v) t ->
    xmatches js (XEx x p) θ t
| X_guard js p g θ t :
    xmatches js p θ t -> geval θ g = Some true ->
    xmatches js (XGuard p g) θ t
| X_let js p x e θ t v :
    xmatches js p θ t -> eval θ e = Some v -> θ x = Some v ->
    xmatches js (XLet p x e) θ t
| X_match js p p' x θ t t' :
    xmatches js p θ t -> θ x = Some (VTerm t') -> xmatches js p' θ t' ->
    xmatches js (XMatch p p' x) θ t
(* The body of what is called matches, with the patterns and the values that it was given. *)
| X_call js c ys θ t d js' D :
    resolve js c = Some (Applied d js') -> nth_error Γ d = Some D ->
    xmatches js' (s_body D) (callenv (s_params D) ys θ) t ->
    xmatches js (XCall c ys) θ t

with xmatches_all : list applied -> list xpattern -> env T -> list T -> Prop :=
| X_nil js θ :
    xmatches_all js [] θ []
| X_cons js p ps θ t ts :
    xmatches js p θ t -> xmatches_all js ps θ ts ->
    xmatches_all js (p :: ps) θ (t :: ts).

Scheme xmatches_mut := Induction for xmatches Sort Prop
  with xmatches_all_mut := Induction for xmatches_all Sort Prop.
Combined Scheme xmatches_mutind from xmatches_mut, xmatches_all_mut.
End Meaning.

(** ** Instances

    A call of an instance inside of itself is a call of its [μ]; any other enters a new [μ].  The
    annotations are free: [notes] says which, for an instance and those around it.  Fuel bounds the
    depth; where instances grow without end, none is enough. *)

Fixpoint position (j : applied) (fs : list applied) : option nat :=
  match fs with
  | [] => None
  | k :: fs => if applied_eq_dec j k then Some 0 else option_map S (position j fs)
  end.

Variable notes : list applied -> list name * list name * list name.

Fixpoint instantiate (n : nat) (fs js : list applied) (p : xpattern) {struct n}
    : option pattern :=
  match n with
  | 0 => None
  | S n =>
    let inside := instantiate n fs js in
    match p with
    | XVar x => Some (PVar x)
    | XOp f ps => option_map (POp f) (sequence (map inside ps))
    | XFun F ps => option_map (PFun F) (sequence (map inside ps))
    | XAlt p q => option_bind (inside p) (fun p => option_map (PAlt p) (inside q))
    | XEx x p => option_map (PEx x) (inside p)
    | XGuard p g => option_map (fun p => PGuard p g) (inside p)
    | XLet p x e => option_map (fun p => PLet p x e) (inside p)
    | XMatch p p' x => option_bind (inside p) (fun p => option_map (fun p' => PMatch p p' x) (inside p'))
    | XCall c ys =>
      option_bind (resolve js c) (fun j =>
        match position j fs, j with
        | Some i, _ => Some (PCall i ys)
        | None, Applied d js' =>
          option_bind (nth_error Γ d) (fun D =>
            let '(ins, outs, small) := notes (j :: fs) in
            option_map (fun b => PMu (s_params D) ins outs small b ys)
              (instantiate n (j :: fs) js' (s_body D)))
        end)
    end
  end.

(** The context in which the bodies of the instances [fs] stand inside each other. *)
Inductive realizes : list applied -> recursion -> Prop :=
| R_nil : realizes [] []
| R_cons d js fs D n b ins outs small R :
    realizes fs R -> nth_error Γ d = Some D ->
    instantiate n (Applied d js :: fs) js (s_body D) = Some b ->
    realizes (Applied d js :: fs) (Def (s_params D) ins outs small b :: R).

Lemma realizes_skipn i : forall fs R, realizes fs R -> realizes (skipn i fs) (skipn i R).
Proof.
  induction i as [| i IH]; intros fs R H; auto. destruct H; simpl; auto using R_nil.
Qed.

Lemma position_skipn j fs : forall i, position j fs = Some i -> exists fs', skipn i fs = j :: fs'.
Proof.
  induction fs as [| k fs IH]; simpl; intros i E; [discriminate |].
  destruct (applied_eq_dec j k) as [-> |]; [injection E as <-; now exists fs |].
  destruct (position j fs) as [i' |]; [| discriminate]. injection E as <-. simpl. auto.
Qed.

Lemma called_realizes j fs i R :
  realizes fs R -> position j fs = Some i ->
  exists d js D n b ins outs small fs' R', j = Applied d js /\
    skipn i R = Def (s_params D) ins outs small b :: R' /\
    realizes (j :: fs') (skipn i R) /\ nth_error Γ d = Some D /\
    instantiate n (j :: fs') js (s_body D) = Some b.
Proof.
  intros H P. destruct (position_skipn _ _ _ P) as [fs' E].
  pose proof (realizes_skipn i _ _ H) as H'. rewrite E in H'.
  inversion H' as [| d js fs0 D n b ins outs small R0 Re ND B]; subst.
  exists d, js, D, n, b, ins, outs, small, fs', R0.
  match goal with S : _ = skipn i R |- _ => rewrite S in * end. auto 10.
Qed.

(** Take a successful instantiation apart. *)
Ltac parts E :=
  simpl in E; unfold option_map, option_bind in E;
  repeat match type of E with
         | context [let '(_, _) := ?x in _] => destruct x eqn:?
         | context [match ?x with _ => _ end] => destruct x eqn:?; try discriminate E
         end;
  try discriminate E; injection E; intros; subst; clear E.

Section Theorems.
Context {T : Type} {Σ : Structure T}.

Lemma preserved :
  (forall js p (θ : env T) t, xmatches js p θ t -> forall n fs R q,
     realizes fs R -> instantiate n fs js p = Some q -> R ⊢ q @ θ ≈ t) /\
  (forall js ps (θ : env T) ts, xmatches_all js ps θ ts -> forall n fs R qs,
     realizes fs R -> sequence (map (instantiate n fs js) ps) = Some qs -> R ⊢ qs @ θ ≈* ts).
Proof.
  apply xmatches_mutind; intros;
    try (match goal with E : instantiate ?n _ _ _ = _ |- _ => destruct n; [discriminate E |] end).
  10: {
    simpl in H1. rewrite e in H1. simpl in H1. rewrite e0 in H1. simpl in H1.
    destruct (position (Applied d js') fs) as [i |] eqn:P.
    - injection H1 as <-.
      destruct (called_realizes _ _ _ _ H0 P)
        as (d' & js'' & D' & m & b & ins & outs & small & fs' & R' & J & S & Re & ND & B).
      injection J as <- <-. rewrite e0 in ND. injection ND as <-.
      eapply M_call; [exact S |]. simpl. rewrite <- S. eapply H; eauto.
    - destruct (notes (Applied d js' :: fs)) as [[ins outs] small].
      destruct (instantiate n (Applied d js' :: fs) js' (s_body D)) as [b |] eqn:B; [| discriminate].
      injection H1 as <-. constructor. eapply H; eauto. econstructor; eauto. }
  all: try (match goal with
            | E : instantiate _ _ _ _ = Some _ |- _ => parts E
            | E : sequence _ = Some _ |- _ => parts E
            end);
    solve [econstructor; eauto | constructor 5; eauto].
Qed.

Lemma reflected :
  (forall R q (θ : env T) t, R ⊢ q @ θ ≈ t -> forall n fs js p,
     realizes fs R -> instantiate n fs js p = Some q -> xmatches js p θ t) /\
  (forall R qs (θ : env T) ts, R ⊢ qs @ θ ≈* ts -> forall n fs js ps,
     realizes fs R -> sequence (map (instantiate n fs js) ps) = Some qs -> xmatches_all js ps θ ts).
Proof.
  apply matches_mutind; intros;
    try (match goal with E : instantiate ?n _ _ ?p = _ |- _ =>
           destruct n; [discriminate E |]; destruct p; parts E end);
    try (match goal with E : sequence (map _ ?ps) = _ |- xmatches_all _ ?ps _ _ =>
           destruct ps; parts E end);
    try solve [econstructor; eauto | constructor 5; eauto].
  - (* a [μ] is the instance that is called *)
    eapply X_call; eauto. eapply H; eauto. econstructor; eauto.
  - (* and a call that of the [μ] around it *)
    match goal with P : position ?j _ = Some _ |- _ => destruct j as [d0 js0]; rename P into Pos end.
    destruct (called_realizes _ _ _ _ H0 Pos)
      as (d' & js'' & D' & k & b & ins & outs & small & fs' & R'' & J & S & Re & ND & B).
    injection J as <- <-. rewrite e in S. injection S as -> ->.
    eapply X_call; eauto. eapply H; eauto. rewrite <- e. exact Re.
  - destruct ps; [constructor | parts H0].
Qed.

(** An instance matches exactly what the pattern with its parameters matches. *)
Theorem instance_matches n p q (θ : env T) t :
  instantiate n [] [] p = Some q -> xmatches [] p θ t <-> [] ⊢ q @ θ ≈ t.
Proof.
  intros E. split; intros M.
  - eapply (proj1 preserved); eauto using R_nil.
  - eapply (proj1 reflected); eauto using R_nil.
Qed.
End Theorems.
End Instantiation.
