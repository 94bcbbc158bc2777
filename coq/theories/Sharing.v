(** * Where the other outputs of a rule are found

    A rule of several outputs has a pattern for each.  The search in a graph matches the first at a node,
    and looks for the next one above the nodes that the two share: above the terms of names that the
    next pattern binds at or below its subject ([bound_below]), through operators that it visits
    ([extent]).  Each match lies there ([shared_below], [found_above]). *)

From Coq Require Import List Bool PeanoNat.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative.

Section Sharing.
Context {Δ : Domain}.

(** ** The operators that a match visits: some, or any *)

Definition extent : Type := option (list op).

Definition admits (X : extent) (f : op) : bool :=
  match X with Some fs => existsb (Nat.eqb f) fs | None => true end.

Definition union (X Y : extent) : extent :=
  match X, Y with Some fs, Some gs => Some (fs ++ gs) | _, _ => None end.

Fixpoint extent_of (p : pattern) : extent :=
  match p with
  | PVar _ | PCall _ _ => Some []
  | POp f ps => union (Some [f]) (fold_right (fun p => union (extent_of p)) (Some []) ps)
  | PFun _ _ => None
  | PAlt p q | PMatch p q _ => union (extent_of p) (extent_of q)
  | PEx _ p | PGuard p _ | PLet p _ _ | PMu _ _ _ _ p _ => extent_of p
  end.

(** All operators of a pattern are among those of [X]. *)
Fixpoint stays_in (X : extent) (p : pattern) : bool :=
  match p with
  | PVar _ | PCall _ _ => true
  | POp f ps => admits X f && forallb (stays_in X) ps
  | PFun _ ps => match X with None => true | Some _ => false end && forallb (stays_in X) ps
  | PAlt p q | PMatch p q _ => stays_in X p && stays_in X q
  | PEx _ p | PGuard p _ | PLet p _ _ | PMu _ _ _ _ p _ => stays_in X p
  end.

Definition wider (X Y : extent) : Prop :=
  (forall f, admits X f = true -> admits Y f = true) /\ (X = None -> Y = None).

Lemma wider_l X Y : wider X (union X Y).
Proof.
  destruct X as [fs |], Y as [gs |]; split; simpl; auto; try discriminate.
  intros f H. rewrite existsb_app. apply orb_true_iff. now left.
Qed.

Lemma wider_r X Y : wider Y (union X Y).
Proof.
  destruct X as [fs |], Y as [gs |]; split; simpl; auto; try discriminate.
  intros f H. rewrite existsb_app. apply orb_true_iff. now right.
Qed.

Lemma wider_trans X Y Z : wider X Y -> wider Y Z -> wider X Z.
Proof. intros [A B] [C D]. split; auto. Qed.

Lemma stays_wider X Y p : wider X Y -> stays_in X p = true -> stays_in Y p = true.
Proof.
  intros [A B].
  assert (L : forall ps, Forall (fun p => stays_in X p = true -> stays_in Y p = true) ps ->
    forallb (stays_in X) ps = true -> forallb (stays_in Y) ps = true).
  { induction 1 as [| q ps Hq _ IH]; simpl; auto. rewrite !andb_true_iff. intuition. }
  induction p as [x | f ps IH | F ps IH | p q IHp IHq | x p IH | p g IH | p x e IH
                 | p q x IHp IHq | xs ins outs small b ys IH | i ys] using pattern_ind';
    simpl; auto; rewrite ?andb_true_iff; intuition.
  destruct X; [discriminate |]. now rewrite B.
Qed.

Lemma children_stay ps :
  Forall (fun p => stays_in (extent_of p) p = true) ps -> forall Z,
  wider (fold_right (fun p => union (extent_of p)) (Some []) ps) Z ->
  forallb (stays_in Z) ps = true.
Proof.
  induction 1 as [| q ps Hq _ IH]; intros Z W; simpl; auto. simpl in W. apply andb_true_intro.
  split.
  - eapply stays_wider; [| exact Hq]. eapply wider_trans; [apply wider_l | exact W].
  - apply IH. eapply wider_trans; [apply wider_r | exact W].
Qed.

Lemma extent_stays p : stays_in (extent_of p) p = true.
Proof.
  induction p as [x | f ps IH | F ps IH | p q IHp IHq | x p IH | p g IH | p x e IH
                 | p q x IHp IHq | xs ins outs small b ys IH | i ys] using pattern_ind';
    simpl; auto.
  - apply andb_true_intro. split.
    + apply (proj1 (wider_l (Some [f]) _)). simpl. now rewrite Nat.eqb_refl.
    + apply (children_stay ps IH). apply (wider_r (Some [f])).
  - induction IH as [| q ps Hq _ IHps]; simpl; auto. rewrite IHps, andb_true_r.
    eapply stays_wider; [| exact Hq]. split; auto.
  - apply andb_true_intro. split; [apply (stays_wider _ _ p (wider_l _ _)) |
      apply (stays_wider _ _ q (wider_r _ _))]; assumption.
  - apply andb_true_intro. split; [apply (stays_wider _ _ p (wider_l _ _)) |
      apply (stays_wider _ _ q (wider_r _ _))]; assumption.
Qed.

(** ** The names that every match binds to a term at or below its subject *)

(** The greatest set that a function keeps, from one on downwards. *)
Fixpoint greatest (f : list name -> list name) (n : nat) (A : list name) : list name :=
  match n with
  | 0 => []
  | S n => if subset A (f A) then A else greatest f n (inter A (f A))
  end.

Lemma greatest_kept f n : forall A, incl (greatest f n A) (f (greatest f n A)).
Proof.
  induction n as [| n IH]; intros A; simpl; [intros x [] |].
  destruct (subset A (f A)) eqn:S; [now apply subset_spec | apply IH].
Qed.

(** For each enclosing definition its parameters, and those that its body is taken to bind so. *)
Definition context : Type := list (list name * list name).

Fixpoint bound_below (C : context) (D : list name) (p : pattern) : list name :=
  match p with
  | PVar x => x :: D
  | POp _ ps | PFun _ ps => thread (bound_below C) D ps
  | PAlt p q => inter (bound_below C D p) (bound_below C D q)
  | PEx x p => without x (bound_below C (without x D) p) ++ filter (Nat.eqb x) D
  | PGuard p _ | PLet p _ _ => bound_below C D p
  | PMatch p p' x =>
      let D' := bound_below C D p in
      if mem x D' then bound_below C D' p' else D'
  | PMu xs _ _ _ b ys =>
      D ++ arguments xs
             (greatest (fun A => bound_below ((xs, A) :: C) [] b) (S (length xs)) xs) ys
  | PCall i ys =>
      match nth_error C i with
      | Some (xs, A) => D ++ arguments xs A ys
      | None => D
      end
  end.

(** ** They are there *)

Context {T : Type} {Σ : Structure T}.

(** From [t] down to [u] through operators of [X]. *)
Inductive path (X : extent) : T -> T -> Prop :=
| path_here t : path X t t
| path_down t f ts t' u :
    dest t = (f, ts) -> admits X f = true -> In t' ts -> path X t' u -> path X t u.

Lemma path_on X r t f ts t' :
  path X r t -> dest t = (f, ts) -> admits X f = true -> In t' ts -> path X r t'.
Proof.
  induction 1; intros D A I; econstructor; eauto using path_here.
Qed.

Definition all_below (X : extent) (θ : env T) (r : T) (D : list name) : Prop :=
  forall x, In x D -> exists u, θ x = Some (VTerm u) /\ path X r u.

Fixpoint keeps (X : extent) (C : context) (R : recursion) : Prop :=
  match C, R with
  | (xs, A) :: C', d :: R' =>
      xs = d_params d /\ incl A (bound_below C [] (d_body d)) /\
      stays_in X (d_body d) = true /\ keeps X C' R'
  | [], [] => True
  | _, _ => False
  end.

Lemma keeps_skipn X i : forall C R d R',
  keeps X C R -> skipn i R = d :: R' ->
  exists A C', nth_error C i = Some (d_params d, A) /\ keeps X ((d_params d, A) :: C') (d :: R').
Proof.
  induction i as [| i IH]; intros [| [xs A] C] [| e R] d R' K E; try discriminate; try destruct K.
  - injection E as -> ->. subst. exists A, C. split; [reflexivity |]. split; tauto.
  - apply (IH C R d R'); tauto.
Qed.

Lemma all_below_arguments X θ r xs A ys D :
  all_below X θ r D -> all_below X (callenv xs ys θ) r A ->
  all_below X θ r (D ++ arguments xs A ys).
Proof.
  intros B B' y I. apply in_app_or in I as [I | I]; auto.
  apply arguments_spec in I as (x & I & E). destruct (B' x I) as (u & Eu & P).
  unfold callenv in Eu. rewrite E in Eu. eauto.
Qed.

Lemma bound_below_sound_mut X :
  (forall R p θ t, R ⊢ p @ θ ≈ t -> forall C D r, keeps X C R -> stays_in X p = true ->
     path X r t -> all_below X θ r D -> all_below X θ r (bound_below C D p)) /\
  (forall R ps θ ts, R ⊢ ps @ θ ≈* ts -> forall C D r, keeps X C R ->
     forallb (stays_in X) ps = true -> (forall t, In t ts -> path X r t) ->
     all_below X θ r D -> all_below X θ r (thread (bound_below C) D ps)).
Proof.
  apply (matches_mutind
    (fun R p θ t _ => forall C D r, keeps X C R -> stays_in X p = true ->
       path X r t -> all_below X θ r D -> all_below X θ r (bound_below C D p))
    (fun R ps θ ts _ => forall C D r, keeps X C R ->
       forallb (stays_in X) ps = true -> (forall t, In t ts -> path X r t) ->
       all_below X θ r D -> all_below X θ r (thread (bound_below C) D ps))).
  - (* var *) intros R x θ t E C D r K _ P B y [<- | I]; eauto.
  - (* op *) intros R f ps θ t ts E _ IH C D r K S P B. simpl in S. apply andb_prop in S as [Sf S].
    apply IH; auto. intros u I. eapply path_on; eauto.
  - (* fun *) intros R F ps θ t f ts E _ _ IH C D r K S P B. simpl in S.
    apply andb_prop in S as [Sf S]. apply IH; auto. intros u I. eapply path_on; eauto.
    destruct X; [discriminate | reflexivity].
  - (* altL *) intros R p q θ t _ IH C D r K S P B. simpl in S. apply andb_prop in S as [S _].
    intros y I. apply inter_spec in I as [I _]. eapply IH; eauto.
  - (* altR *) intros R p q θ t _ IH C D r K S P B. simpl in S. apply andb_prop in S as [_ S].
    intros y I. apply inter_spec in I as [_ I]. eapply IH; eauto.
  - (* ex *) intros R x p θ t v _ IH C D r K S P B y I. simpl in I.
    apply in_app_or in I as [I | I].
    + apply without_spec in I as [I N].
      assert (B' : all_below X (update θ x v) r (without x D)).
      { intros z Iz. apply without_spec in Iz as [Iz Nz]. rewrite update_other by exact Nz. auto. }
      destruct (IH C (without x D) r K S P B' y I) as (u & E & Pu).
      rewrite update_other in E by exact N. eauto.
    + apply filter_In in I as [I _]. auto.
  - (* guard *) intros R p g θ t _ IH _ C D r K S P B. apply IH; auto.
  - (* let *) intros R p x e θ t v _ IH _ _ C D r K S P B. apply IH; auto.
  - (* match *) intros R p p' x θ t t' _ IH E _ IH' C D r K S P B. simpl in S.
    apply andb_prop in S as [S S']. specialize (IH C D r K S P B). simpl.
    destruct (mem x (bound_below C D p)) eqn:M; auto.
    apply mem_spec in M. destruct (IH x M) as (u & Eu & Pu).
    assert (u = t') as -> by congruence. apply IH'; auto.
  - (* mu *) intros R xs ins outs small b ys θ t _ IH C D r K S P B. cbn [bound_below].
    apply all_below_arguments; auto.
    set (f := fun A => bound_below ((xs, A) :: C) [] b).
    set (A := greatest f (Datatypes.S (length xs)) xs).
    assert (G : incl A (f A)) by apply greatest_kept.
    intros x I. apply (IH ((xs, A) :: C) [] r); auto; [| intros z []].
    repeat split; auto.
  - (* call *) intros R i d R' ys θ t E _ IH C D r K _ P B. cbn [bound_below].
    destruct (keeps_skipn _ _ _ _ _ _ K E) as (A & C' & N & K'). rewrite N.
    apply all_below_arguments; auto. destruct K' as (_ & I & S & K'').
    intros x Ix. apply (IH ((d_params d, A) :: C') [] r); auto; [| intros z []].
    repeat split; auto.
  - (* nil *) auto.
  - (* cons *) intros R p ps θ t ts _ IHp _ IHps C D r K S P B. simpl in S.
    apply andb_prop in S as [Sp S]. simpl. apply IHps; auto.
    + intros u I. apply P. now right.
    + apply IHp; auto. apply P. now left.
Qed.

Theorem shared_below p θ t x :
  [] ⊢ p @ θ ≈ t -> In x (bound_below [] [] p) ->
  exists u, θ x = Some (VTerm u) /\ path (extent_of p) t u.
Proof.
  intros M I. apply (proj1 (bound_below_sound_mut (extent_of p)) _ _ _ _ M [] [] t); auto.
  - exact Logic.I.
  - apply extent_stays.
  - constructor.
  - intros y [].
Qed.

(** ** In a graph

    Nodes have terms, and several may have the same.  The search goes up from all nodes of the terms of
    shared names, through nodes whose operator the extent admits. *)

Section Graph.
Variable node : Type.
Variable term_of : node -> T.
Variable children : node -> list node.
Hypothesis terms : forall n f ts, dest (term_of n) = (f, ts) -> map term_of (children n) = ts.

Inductive reached (X : extent) (from : node -> Prop) : node -> Prop :=
| reached_from n : from n -> reached X from n
| reached_user n m f ts :
    reached X from m -> In m (children n) ->
    dest (term_of n) = (f, ts) -> admits X f = true -> reached X from n.

Lemma path_reached X (from : node -> Prop) u :
  (forall n, term_of n = u -> from n) ->
  forall t, path X t u -> forall n, term_of n = t -> reached X from n.
Proof.
  intros F t P. induction P as [u | t f ts t' u D A I _ IH]; intros n E.
  - apply reached_from. auto.
  - subst. assert (I' := I). rewrite <- (terms _ _ _ D) in I'.
    apply in_map_iff in I' as (m & Em & Im). eapply reached_user; eauto.
Qed.

(** [places]: nodes of earlier outputs of a match; [shared] are names bound there. *)
Theorem found_above ps p qs θ ns n ms (shared : list name) :
  [] ⊢ ps ++ p :: qs @ θ ≈* map term_of (ns ++ n :: ms) ->
  length ps = length ns ->
  (exists x, In x shared /\ In x (bound_below [] [] p)) ->
  reached (extent_of p)
    (fun m => exists x, In x shared /\ In x (bound_below [] [] p) /\ θ x = Some (VTerm (term_of m)))
    n.
Proof.
  intros M L (x & Ix & B).
  assert (H : [] ⊢ p @ θ ≈ term_of n).
  { revert ns L M. induction ps as [| q ps IH]; intros [| k ns] L M; try discriminate.
    - now inversion M.
    - apply (IH ns); [now injection L |]. now inversion M. }
  destruct (shared_below _ _ _ _ H B) as (u & E & P).
  eapply path_reached with (t := term_of n) (u := u); eauto. intros m Em. exists x. subst. auto.
Qed.
End Graph.
End Sharing.
